"""The reader of last resort: a decoder of the common kind, by the field names that most families share.

Softmax attention (grouped, or latent where kv_lora_rank stands), one gated feed-forward part or experts a layer. What
it does not know stays unread, so the file's report names it.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import Architecture, FeedForward, GroupedAttention, Mixer, MixtureOfExperts
from simulator.model.fields import Fields
from simulator.model.idioms import attention, common, feed_forward

MODEL_TYPES = ()
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k")
_EXPERT_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
_DENSE_WIDTH = ("dense_intermediate_size", "intermediate_size_mlp", "intermediate_size")
_LATENT_WIDTH = ("routed_expert_hidden_size", "moe_latent_size")
_SHARED_COUNT = ("n_shared_experts", "num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim")
_STRUCTURE = ("hybrid_override_pattern", "layers_block_type", "ssm_state_size", "state_size")
"""Fields that make a layer something else than attention and feed-forward part: nothing here comes near."""
_WINDOWED = ("sliding_attention", "chunked_attention")


def read(fields: Fields) -> Architecture:
    """The text model, at the root or below text_config."""
    if "text_config" not in fields:
        return _text_model(fields)
    architecture = _text_model(common.text_part(fields))
    fields.approximate("Only the text model (text_config) is read; what stands beside it is left out.")
    return common.beside_vision(fields, architecture, None)


def _text_model(fields: Fields) -> Architecture:
    for name in _STRUCTURE:
        if name in fields:
            fields.problem(name, "only the reader of a known model_type understands it")
    count = common.layer_count(fields)
    if "tie_word_embeddings" not in fields:
        fields.approximate("tie_word_embeddings is absent; embedding and head are read as two matrices.")
    parts = list(zip(_mixers(fields, count), _feed_forwards(fields, count), strict=True))
    modules = fields.count(fields.first("num_nextn_predict_layers", "num_mtp_modules"), 0, limit=100)
    return replace(common.decoder(fields, parts), mtp_layers=modules)


def _mixers(fields: Fields, count: int) -> list[Mixer]:
    if "kv_lora_rank" in fields:
        return [*attention.latent_attention_layers(fields, count)]
    full = _grouped_attention(fields)
    window = fields.optional_size("sliding_window") if fields.flag("use_sliding_window", True) else None
    fields.ignore("sliding_window")
    windowed = replace(full, window=window or fields.optional_size("attention_chunk_size"))
    kinds = fields.texts("layer_types", ["full_attention"] * count)
    if fields.sound and len(kinds) != count:
        fields.problem("layer_types", f"found {len(kinds)} entries for {count} layers")
    for strange in sorted({*kinds} - {"full_attention", "attention", *_WINDOWED}):
        fields.approximate(f"Layers of type {strange[:40]!r} are read as softmax attention over the whole sequence.")
    if window and "layer_types" not in fields:
        fields.approximate(f"Which layers have the sliding window of {window} is not said; all are read without it.")
    return [windowed if kind in _WINDOWED else full for kind in (kinds + ["full_attention"] * count)[:count]]


def _grouped_attention(fields: Fields) -> GroupedAttention:
    plain = attention.grouped_attention(fields)
    rotary_dim = fields.optional_size("rotary_dim")
    if "partial_rotary_factor" in fields and rotary_dim is None:
        rotary_dim = int(fields.fraction("partial_rotary_factor", 1.0) * plain.head_dim)
    return replace(
        plain,
        qkv_bias=plain.qkv_bias or fields.flag("qkv_bias"),
        qk_norm="head" if fields.flag("use_qk_norm") else "none",
        rotary_dim=rotary_dim,
    )


def _feed_forwards(fields: Fields, count: int) -> list[FeedForward]:
    if fields.first(*_EXPERTS) not in fields:
        return [feed_forward.dense_feed_forward(fields)] * count
    mixture, sparse = _mixture(fields), feed_forward.sparse_layers(fields, count)
    fields.ignore(*_DENSE_WIDTH)
    if all(sparse):
        return [mixture] * count
    dense = feed_forward.dense_feed_forward(fields, fields.first(*_DENSE_WIDTH))
    return [mixture if chosen else dense for chosen in sparse]


def _mixture(fields: Fields) -> MixtureOfExperts:
    mixture = feed_forward.mixture_of_experts(
        fields, fields.first(*_EXPERTS), fields.first(*_EXPERT_WIDTH), fields.first(*_TOP_K)
    )
    mixture = feed_forward.in_groups(fields, mixture, "n_group", "topk_group")
    number = fields.count(fields.first(*_SHARED_COUNT), 0)
    width = fields.count(fields.first(*_SHARED_WIDTH), number * mixture.intermediate)
    fields.ignore("topk_method")
    return replace(
        mixture,
        latent=fields.optional_size(fields.first(*_LATENT_WIDTH)),
        shared_experts=number or (1 if width else 0),
        shared_intermediate=width,
        router_bias=fields.flag(fields.first("use_routing_bias", "use_moe_router_bias")),
    )
