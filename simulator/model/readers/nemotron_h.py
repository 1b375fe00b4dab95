"""Nemotron-H and Nemotron-3: a layer is one Mamba-2 mixer, one attention without rotation or one feed-forward part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulator.model.architecture import (
    Architecture,
    DenseFeedForward,
    FeedForward,
    GroupedAttention,
    Layer,
    Mamba2,
    Mixer,
    MixtureOfExperts,
)
from simulator.model.fields import MOST_LAYERS, Fields
from simulator.model.idioms import attention, common, feed_forward

MODEL_TYPES = ("nemotron_h",)
_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
Parts = tuple[Mixer | None, FeedForward | None]


def read(fields: Fields) -> Architecture:
    """The order of layers stands in layers_block_type, or as letters in hybrid_override_pattern."""
    kinds = _kinds(fields, "layers_block_type", "hybrid_override_pattern")
    if fields.sound and fields.size("num_hidden_layers", len(kinds) or 1) != len(kinds):
        fields.problem("num_hidden_layers", f"the pattern of layers has {len(kinds)} entries")
    parts = _parts(fields, {*kinds})
    fields.ignore(
        "expand", "intermediate_size", "mamba_hidden_act", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap",
        "partial_rotary_factor", "residual_in_fp32", "time_step_floor", "time_step_limit", "time_step_max",
        "time_step_min", "use_mamba_kernels",
    )  # fmt: skip
    architecture = common.decoder(fields, [parts[kind] for kind in kinds])
    module = _kinds(fields, "mtp_layers_block_type", "mtp_hybrid_override_pattern", required=False)
    extra = _parts(fields, {*module})
    return replace(
        architecture,
        mtp_layers=fields.count("num_nextn_predict_layers", 0, limit=100),
        mtp_module=tuple(Layer(index, *extra[kind]) for index, kind in enumerate(module)),
    )


def _kinds(fields: Fields, listed: str, pattern: str, required: bool = True) -> list[str]:
    if listed in fields:
        kinds = fields.texts(listed)
    elif pattern in fields or required:
        kinds = [_LETTERS.get(letter, letter) for letter in fields.text(pattern)]
    else:
        return []
    name = fields.first(listed, pattern)
    strange = sorted({*kinds} - {*_LETTERS.values()})
    if strange or len(kinds) > MOST_LAYERS:
        allowed = ", ".join(f"{kind} ({letter})" for letter, kind in _LETTERS.items())
        found = repr(strange[0][:40]) if strange else f"{len(kinds)} layers"
        fields.problem(name, f"found {found}, expected at most {MOST_LAYERS} of {allowed}")
        return []
    return kinds


def _parts(fields: Fields, kinds: set[str]) -> dict[str, Parts]:
    """What each kind of layer in use is made of."""
    makers: dict[str, Callable[[Fields], Parts]] = {
        "mamba": lambda own: (_mamba(own), None),
        "attention": lambda own: (_attention(own), None),
        "moe": lambda own: (None, _mixture(own)),
        "mlp": lambda own: (None, _dense(own)),
    }
    return {kind: makers[kind](fields) for kind in sorted(kinds)}


def _mamba(fields: Fields) -> Mamba2:
    if fields.flag("use_bias") or fields.flag("mamba_proj_bias"):
        fields.approximate("Biases of the Mamba projections are left out.")
    return Mamba2(
        heads=fields.size("mamba_num_heads"),
        head_dim=fields.size("mamba_head_dim"),
        groups=fields.size("n_groups"),
        state=fields.size("ssm_state_size"),
        conv_kernel=fields.size("conv_kernel"),
        conv_bias=fields.flag("use_conv_bias", True),
        chunk=fields.size("chunk_size", 128),
    )


def _attention(fields: Fields) -> GroupedAttention:
    return replace(attention.grouped_attention(fields), rotary_dim=0)


def _dense(fields: Fields) -> DenseFeedForward:
    return DenseFeedForward(
        fields.size("intermediate_size"),
        activation=fields.text("mlp_hidden_act", "relu2"),
        gated=False,
        bias=fields.flag("mlp_bias"),
    )


def _mixture(fields: Fields) -> MixtureOfExperts:
    mixture = feed_forward.mixture_of_experts(
        fields, "n_routed_experts", "moe_intermediate_size", "num_experts_per_tok"
    )
    shared = fields.count("n_shared_experts", 0)
    return replace(
        feed_forward.in_groups(fields, mixture, "n_group", "topk_group"),
        activation=fields.text("mlp_hidden_act", "relu2"),
        gated=False,
        bias=fields.flag("mlp_bias"),
        latent=fields.optional_size("moe_latent_size"),
        shared_experts=shared,
        shared_intermediate=shared * fields.count("moe_shared_expert_intermediate_size", 0),
        router_bias=True,
    )
