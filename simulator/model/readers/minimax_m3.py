"""MiniMax-M3: grouped attention, in most layers to the best-scored blocks of keys only; experts and a shared one."""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import Architecture, BlockSparseAttention, FeedForward, Mixer
from simulator.model.fields import Fields
from simulator.model.idioms import attention, common, feed_forward

MODEL_TYPES = ("minimax_m3",)


def read(fields: Fields) -> Architecture:
    """sparse_attention_config names the layers whose queries choose blocks."""
    count = common.layer_count(fields)
    fields.ignore("use_gemma_norm", "num_nextn_predict_layers", "partial_rotary_factor")
    fields.ignore("moe_intermediate_size")
    parts = list(zip(_mixers(fields, count), _feed_forwards(fields, count), strict=True))
    return replace(common.decoder(fields, parts), mtp_layers=fields.count("num_mtp_modules", 0, limit=100))


def _mixers(fields: Fields, count: int) -> list[Mixer]:
    full = replace(
        attention.grouped_attention(fields),
        qk_norm="head" if fields.flag("use_qk_norm") else "none",
        output_gate=fields.flag("attention_output_gate"),
        rotary_dim=fields.optional_size("rotary_dim"),
    )
    fields.text("qk_norm_type", "per_head", ("per_head",))
    sparse = fields.part("sparse_attention_config")
    if sparse is None or not sparse.flag("use_sparse_attention", True):
        return [full] * count
    chosen = sparse.whole_numbers("sparse_attention_freq")
    if fields.sound and len(chosen) != count:
        sparse.problem("sparse_attention_freq", f"found {len(chosen)} entries for {count} layers")
    blocks = BlockSparseAttention(
        full,
        block=sparse.size("sparse_block_size"),
        top_blocks=sparse.size("sparse_topk_blocks"),
        index_heads=sparse.size("sparse_num_index_heads"),
        index_dim=sparse.size("sparse_index_dim"),
    )
    sparse.ignore("sparse_disable_index_value", "sparse_init_block", "sparse_local_block", "sparse_score_type")
    fields.approximate("The scorer of blocks is read as two projections of the layer's input without norms.")
    return [blocks if flag else full for flag in (chosen + [0] * count)[:count]]


def _feed_forwards(fields: Fields, count: int) -> list[FeedForward]:
    mixture = feed_forward.mixture_of_experts(fields, "num_local_experts", "intermediate_size", "num_experts_per_tok")
    number = fields.count("n_shared_experts", 0)
    mixture = replace(
        mixture,
        shared_experts=number,
        shared_intermediate=number * fields.count("shared_intermediate_size", mixture.intermediate),
        router_bias=fields.flag("use_routing_bias"),
    )
    dense = feed_forward.dense_feed_forward(fields, fields.first("dense_intermediate_size", "intermediate_size"))
    return [mixture if chosen else dense for chosen in feed_forward.sparse_layers(fields, count)]
