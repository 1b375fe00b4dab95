"""Attention as most families spell it: Llama's grouped attention, DeepSeek's latent attention with its indexer."""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import GroupedAttention, Indexer, LatentAttention
from simulator.model.fields import Fields
from simulator.model.idioms.common import layer_list


def grouped_attention(fields: Fields) -> GroupedAttention:
    """num_attention_heads, num_key_value_heads, head_dim and attention_bias, in Llama's spelling."""
    heads = fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", heads)
    hidden = fields.size("hidden_size")
    head_dim = fields.optional_size("head_dim")
    if fields.sound and heads % kv_heads:
        fields.problem("num_key_value_heads", f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")
    if fields.sound and head_dim is None and hidden % heads:
        fields.problem("num_attention_heads", f"hidden_size {hidden} is no multiple of {heads}, and head_dim is absent")
    bias = fields.flag("attention_bias")
    return GroupedAttention(heads, kv_heads, head_dim or hidden // heads, qkv_bias=bias, output_bias=bias)


def latent_attention(fields: Fields, *, rope: bool = True) -> LatentAttention:
    """DeepSeek's spelling of multi-head latent attention."""
    fields.ignore("num_key_value_heads", "qk_head_dim", "head_dim")
    if fields.flag("attention_bias"):
        fields.approximate("Biases of the attention projections (attention_bias) are left out.")
    return LatentAttention(
        heads=fields.size("num_attention_heads"),
        q_lora_rank=fields.optional_size("q_lora_rank"),
        kv_lora_rank=fields.size("kv_lora_rank"),
        nope_dim=fields.size("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        v_dim=fields.size("v_head_dim"),
        rope=rope,
    )


def latent_attention_layers(fields: Fields, count: int) -> list[LatentAttention]:
    """Latent attention in each of *count* layers, with an indexer where the index_ fields stand (DeepSeek-V3.2, GLM-5).

    indexer_types says "full" or "shared" of each layer (GLM-5.2 runs the indexer in every fourth).
    """
    attention = latent_attention(fields)
    if "index_n_heads" not in fields:
        return [attention] * count
    indexer = Indexer(fields.size("index_n_heads"), fields.size("index_head_dim"), fields.size("index_topk"))
    fields.ignore(
        "indexer_rope_interleave", "index_topk_freq", "index_skip_topk_offset", "index_share_for_mtp_iteration"
    )
    kinds = layer_list(fields, "indexer_types", ["full"] * count, ("full", "shared"))
    return [replace(attention, indexer=replace(indexer, shared=kind == "shared")) for kind in kinds]


def partial_rotary(fields: Fields, default: float) -> float:
    """partial_rotary_factor, at the root or in rope_parameters: the part of a head's dims that is rotated."""
    rope = fields.part("rope_parameters")
    if rope is None:
        return fields.fraction("partial_rotary_factor", default)
    factor = rope.fraction("partial_rotary_factor", default)
    rope.ignore_rest()
    return factor
