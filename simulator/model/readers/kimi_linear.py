"""Kimi-Linear, Kimi-K3 and Kimi-K3.1: Kimi Delta Attention in most layers, unrotated latent attention in the rest.

K3 adds a latent mixture of experts, gates on both kinds of attention, attention residuals and a vision tower; K3.1 adds
a lightning indexer to its full-attention layers.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import (
    Architecture,
    FeedForward,
    Indexer,
    KimiDeltaAttention,
    LatentAttention,
    Mixer,
    MixtureOfExperts,
)
from simulator.model.fields import Fields
from simulator.model.idioms import attention, common, feed_forward, moonvit

MODEL_TYPES = ("kimi_linear", "kimi_k3", "kimi_k31")
_DECAY_PADDING = 128
"""K3's checkpoint holds A_log padded to a multiple of this many elements: 128 for 96 heads."""


def read(fields: Fields) -> Architecture:
    """The text model alone (kimi_linear), or below text_config beside a vision tower (kimi_k3, kimi_k31)."""
    model_type = fields.text("model_type")
    if model_type == "kimi_linear":
        return _text_model(fields, model_type)
    architecture = _text_model(common.text_part(fields), model_type)
    return common.beside_vision(fields, architecture, moonvit.read(fields, architecture.hidden))


def _text_model(fields: Fields, model_type: str) -> Architecture:
    count = common.layer_count(fields)
    block = fields.count("attn_res_block_size", 0)
    parts = list(zip(_mixers(fields, count, model_type), _feed_forwards(fields, count), strict=True))
    architecture = common.decoder(fields, parts)
    return replace(
        architecture,
        layers=tuple(
            replace(layer, residual_blocks=layer.index // block + 1 if block else 0) for layer in architecture.layers
        ),
        attn_res_block=block,
        mtp_layers=fields.count("num_nextn_predict_layers", 0, limit=100),
    )


def _mixers(fields: Fields, count: int, model_type: str) -> list[Mixer]:
    linear = fields.part("linear_attn_config", required=True)
    latent = _latent_attention(fields, model_type)
    if linear is None:
        return [latent] * count
    delta = _delta_attention(linear, padded=model_type != "kimi_linear")
    full = set(linear.whole_numbers("full_attn_layers"))
    every = set(range(1, count + 1))
    listed = linear.whole_numbers("kda_layers", sorted(every - full))
    if fields.sound and (full | {*listed} != every or full & {*listed}):
        linear.problem("full_attn_layers", f"with kda_layers it must name each layer from 1 to {count} once")
    return [latent if index + 1 in full else delta for index in range(count)]


def _latent_attention(fields: Fields, model_type: str) -> LatentAttention:
    mixer = attention.latent_attention(fields, rope=not fields.flag("mla_use_nope"))
    return replace(
        mixer,
        output_gate=fields.flag("mla_use_output_gate"),
        indexer=_indexer(fields) if model_type == "kimi_k31" else None,
    )


def _indexer(fields: Fields) -> Indexer | None:
    sparse = fields.part("dsa_config", required=True)
    if sparse is None:
        return None
    fields.approximate(
        "The indexer's query projection (wq_b) is assumed to read the latent query (q_lora_rank), as in DeepSeek-V3.2."
    )
    return Indexer(
        sparse.size("index_n_heads"), sparse.size("index_head_dim"), sparse.size("index_topk"), rope=sparse.flag("rope")
    )


def _delta_attention(fields: Fields, *, padded: bool) -> KimiDeltaAttention:
    heads, head_dim = fields.size("num_heads"), fields.size("head_dim")
    fields.ignore("gate_lower_bound")
    return KimiDeltaAttention(
        heads,
        head_dim,
        fields.size("short_conv_kernel_size"),
        full_rank_gate=fields.flag("use_full_rank_gate"),
        decay_rank=head_dim,
        decay_parameters=-(-heads // _DECAY_PADDING) * _DECAY_PADDING if padded else heads,
    )


def _feed_forwards(fields: Fields, count: int) -> list[FeedForward]:
    fields.ignore("activation_situ_beta", "activation_situ_linear_beta", "use_grouped_topk")
    dense, mixture = feed_forward.dense_feed_forward(fields), _mixture(fields)
    return [mixture if chosen else dense for chosen in feed_forward.sparse_layers(fields, count)]


def _mixture(fields: Fields) -> MixtureOfExperts:
    top_k = fields.first("num_experts_per_token", "num_experts_per_tok")
    mixture = feed_forward.mixture_of_experts(fields, "num_experts", "moe_intermediate_size", top_k)
    mixture = feed_forward.in_groups(fields, mixture, "num_expert_group", "topk_group")
    shared = fields.count("num_shared_experts", 0)
    return replace(
        mixture,
        latent=fields.optional_size("routed_expert_hidden_size"),
        latent_norm=fields.flag("latent_moe_use_norm"),
        shared_experts=shared,
        shared_intermediate=shared * mixture.intermediate,
        router_bias=True,
    )
