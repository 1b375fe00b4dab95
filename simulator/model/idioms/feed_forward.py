"""Feed-forward parts as most families spell them: gated, with or without experts, and which layers have experts."""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import DenseFeedForward, MixtureOfExperts
from simulator.model.fields import Fields
from simulator.model.idioms.common import layer_list


def dense_feed_forward(fields: Fields, width: str = "intermediate_size") -> DenseFeedForward:
    """A gated feed-forward part as wide as the field *width* says."""
    return DenseFeedForward(
        fields.size(width), activation=fields.text("hidden_act", "silu"), bias=fields.flag("mlp_bias")
    )


def mixture_of_experts(fields: Fields, experts: str, intermediate: str, top_k: str) -> MixtureOfExperts:
    """Routed experts whose number, width and choice stand in the fields *experts*, *intermediate* and *top_k*."""
    mixture = MixtureOfExperts(
        fields.size(experts),
        fields.size(top_k),
        fields.size(intermediate),
        activation=fields.text("hidden_act", "silu"),
    )
    if fields.sound and mixture.top_k > mixture.experts:
        fields.problem(top_k, f"a token cannot visit {mixture.top_k} of {mixture.experts} experts")
    return mixture


def sparse_layers(fields: Fields, count: int) -> list[bool]:
    """Which of *count* layers have experts, by whichever fields the file has.

    mlp_layer_types and a list moe_layer_freq name each layer; first_k_dense_replace leading layers are dense, and then
    every moe_layer_freq-th has experts (DeepSeek); every decoder_sparse_step-th but mlp_only_layers has (Qwen), every
    interleave_moe_layer_step-th (Llama 4).
    """
    if fields.is_list("moe_layer_freq"):
        listed = fields.whole_numbers("moe_layer_freq")
        if fields.sound and len(listed) != count:
            fields.problem("moe_layer_freq", f"found {len(listed)} entries for {count} layers")
        fields.ignore("first_k_dense_replace")
        return [bool(entry) for entry in (listed + [1] * count)[:count]]
    leading, every = fields.count("first_k_dense_replace", 0), fields.size("moe_layer_freq", 1)
    step = fields.size(fields.first("decoder_sparse_step", "interleave_moe_layer_step"), 1)
    dense = set(fields.whole_numbers("mlp_only_layers", []))
    by_rule = [
        "sparse" if i >= leading and i % every == 0 and (i + 1) % step == 0 and i not in dense else "dense"
        for i in range(count)
    ]
    return [kind == "sparse" for kind in layer_list(fields, "mlp_layer_types", by_rule, ("dense", "sparse"))]


def in_groups(fields: Fields, mixture: MixtureOfExperts, groups: str, best: str) -> MixtureOfExperts:
    """*mixture* where tokens may visit experts of their best few groups only, as the fields *groups* and *best* say."""
    count = fields.size(groups, 1)
    chosen = fields.size(best, count)
    if not fields.sound or chosen >= count:
        return mixture
    if mixture.experts % count:
        fields.problem(groups, f"{mixture.experts} experts do not divide into {count} groups")
    elif mixture.top_k > chosen * (mixture.experts // count):
        fields.problem(
            best, f"{chosen} of {count} groups have fewer experts than the {mixture.top_k} that a token visits"
        )
    return replace(mixture, groups=count, best_groups=chosen)
