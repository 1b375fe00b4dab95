"""DeepSeek-V4: attention over compressed keys, hyper-connections instead of one residual, experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import Architecture, CompressedAttention, Indexer, MixtureOfExperts
from simulator.model.fields import Fields
from simulator.model.idioms import common, feed_forward

MODEL_TYPES = ("deepseek_v4",)
_INDEXED_RATIO = 4
"""Layers that keep one key for this many tokens choose among them with an indexer; coarser ones read all."""


def read(fields: Fields) -> Architecture:
    """The first num_hash_layers layers choose experts by a table of token ids, without the router's correction bias."""
    count = common.layer_count(fields)
    mixers, mixture = _mixers(fields, count), _mixture(fields)
    hashed = fields.count("num_hash_layers", 0)
    fields.ignore("hc_eps", "hc_sinkhorn_iters", "compress_rope_theta", "expert_dtype")
    parts = [(mixer, replace(mixture, router_bias=index >= hashed)) for index, mixer in enumerate(mixers)]
    architecture = common.decoder(fields, parts)
    streams = fields.size("hc_mult", 1, limit=64)
    return replace(
        architecture,
        layers=tuple(replace(layer, hyper_connections=streams) for layer in architecture.layers),
        mtp_layers=fields.count("num_nextn_predict_layers", 0, limit=100),
    )


def _mixers(fields: Fields, count: int) -> list[CompressedAttention]:
    ratios = fields.whole_numbers("compress_ratios")
    if fields.sound and len(ratios) < count:
        fields.problem("compress_ratios", f"found {len(ratios)} entries for {count} layers")
    indexer = Indexer(fields.size("index_n_heads"), fields.size("index_head_dim"), fields.size("index_topk"))
    mixer = _attention(fields)
    return [
        replace(mixer, compress_ratio=ratio, indexer=indexer if ratio == _INDEXED_RATIO else None)
        for ratio in (ratios + [0] * count)[:count]
    ]


def _attention(fields: Fields) -> CompressedAttention:
    fields.ignore("num_key_value_heads", "attention_bias")
    heads, head_dim, groups = fields.size("num_attention_heads"), fields.size("head_dim"), fields.size("o_groups")
    if fields.sound and heads * head_dim % groups:
        fields.problem("o_groups", f"{heads} heads of {head_dim} cannot be split into {groups} groups evenly")
    return CompressedAttention(
        heads=heads,
        head_dim=head_dim,
        q_lora_rank=fields.size("q_lora_rank"),
        rope_dim=fields.count("qk_rope_head_dim"),
        output_groups=groups,
        output_rank=fields.size("o_lora_rank"),
        window=fields.size("sliding_window"),
        compress_ratio=0,
    )


def _mixture(fields: Fields) -> MixtureOfExperts:
    mixture = feed_forward.mixture_of_experts(
        fields, "n_routed_experts", "moe_intermediate_size", "num_experts_per_tok"
    )
    shared = fields.count("n_shared_experts", 0)
    return replace(mixture, shared_experts=shared, shared_intermediate=shared * mixture.intermediate)
