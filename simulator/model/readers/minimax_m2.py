"""MiniMax-M2: grouped attention with a norm over all heads' q and k, and experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import Architecture
from simulator.model.fields import Fields
from simulator.model.idioms import attention, common, feed_forward

MODEL_TYPES = ("minimax_m2",)


def read(fields: Fields) -> Architecture:
    """Every layer is alike; the multi-token-prediction modules count where use_mtp is set."""
    norm = fields.text("qk_norm_type", "per_layer", ("per_layer", "per_head"))
    mixer = replace(
        attention.grouped_attention(fields),
        qk_norm="none" if not fields.flag("use_qk_norm") else "layer" if norm == "per_layer" else "head",
        rotary_dim=fields.optional_size("rotary_dim"),
    )
    shared = fields.count("shared_intermediate_size", 0)
    mixture = replace(
        feed_forward.mixture_of_experts(fields, "num_local_experts", "intermediate_size", "num_experts_per_tok"),
        shared_experts=1 if shared else 0,
        shared_intermediate=shared,
        router_bias=fields.flag("use_routing_bias"),
    )
    modules = fields.count("num_mtp_modules", 0, limit=100) * fields.size("mtp_transformer_layers", 1, limit=100)
    architecture = common.decoder(fields, [(mixer, mixture)] * common.layer_count(fields))
    return replace(architecture, mtp_layers=modules if fields.flag("use_mtp") else 0)
