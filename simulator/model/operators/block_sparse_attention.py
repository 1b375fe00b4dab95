"""Grouped attention to the best-scored blocks of keys (MiniMax-M3): an index branch, the choice of blocks, the core.

The index branch scores every key with a few thin heads and keeps the maximum over each block; the attention kernel then
reads *top_blocks* blocks for each query. The choice carries no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import BlockSparseAttention
from simulator.model.operator import Context, Kernel, Operator, Workload
from simulator.model.operators.attention_core import flash_attention, window_pairs
from simulator.model.operators.communication import gather_context
from simulator.model.operators.gemm import linear
from simulator.model.operators.grouped_attention import after_core, attention_shape, before_core
from simulator.model.operators.indexer import forward_only
from simulator.model.operators.lane import FP32_BYTES, MIXER_INPUT, gathered_lane, token_lane
from simulator.model.operators.rotary import rotary
from simulator.model.split import Split

SPLITS = (Split("attention", "attention"), Split("index_heads", "the index heads", copied=True))
_INDEX_BYTES = 4


def operators(component: BlockSparseAttention, hidden: int, workload: Workload) -> tuple[Operator, ...]:
    """Operators of *component* in a model *hidden* wide; a query sees the keys of its blocks, or all before it."""
    lane, attention = token_lane(workload), component.attention
    shape = attention_shape(attention)
    pairs = window_pairs(workload.sequence_lengths, component.block * component.top_blocks) / workload.cp
    return (
        *before_core(attention, hidden, workload),
        *_index(component, hidden, workload),
        *gather_context(workload, shape.key + shape.value),
        flash_attention(lane, workload, shape, pairs),
        *after_core(attention, hidden, workload),
    )


def contexts(component: BlockSparseAttention) -> tuple[Context, ...]:
    """Ways of context parallelism that are known of it."""
    del component
    return ("all_gather",)


def _index(component: BlockSparseAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    lane, inner, dim = gathered_lane(workload), component.index_heads * component.index_dim, component.index_dim
    yield linear(lane, "index_q", MIXER_INPUT, hidden, inner, ("self_attn.index_q_proj.weight",), backward=False)
    yield linear(lane, "index_k", MIXER_INPUT, hidden, dim, ("self_attn.index_k_proj.weight",), backward=False)
    yield forward_only(rotary(lane, inner, dim))
    yield from map(forward_only, gather_context(workload, dim))
    pairs, length = workload.causal_pairs, max(workload.sequence_lengths)
    scores = FP32_BYTES * component.index_heads * pairs / component.block
    read = lane.tensor_bytes(inner + dim)
    kernel = Kernel("indexer", 2.0 * inner * pairs, read + scores, (component.index_heads, dim, length), lane.dtype)
    yield Operator("index_scores", (kernel,), output_bytes=scores)
    chosen = lane.count * component.index_heads * component.top_blocks * _INDEX_BYTES
    choice = Kernel("topk", 0.0, scores + chosen, (component.top_blocks,))
    yield Operator("index_topk", (choice,), output_bytes=chosen)
