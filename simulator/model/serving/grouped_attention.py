"""Grouped-query attention over a cache: prompts in one flash kernel, decoding sequences in one that splits contexts.

A decoding sequence reads all of its keys and values for one row of queries a head, so that traffic binds it: 2 Hk d
elements a token, for 4 H d FLOPs (models_and_formulas section 3.4). Kernels split a context among compute units and
add the parts up (Dao et al., "Flash-Decoding", 2023). A window or chunk bounds what is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import GroupedAttention
from simulator.model.operator import Kernel, Operator, Workload
from simulator.model.operators.attention_core import AttentionShape
from simulator.model.operators.grouped_attention import attention_shape
from simulator.model.operators.lane import pointwise
from simulator.model.serving.formats import CacheFormat
from simulator.model.serving.iteration import Chunk, Iteration

REPLACED = frozenset({"attention"})
BYTES: dict[CacheFormat, int] = {"bf16": 2, "fp8": 1}


def cached(
    component: GroupedAttention, hidden: int, workload: Workload, iteration: Iteration, cache: CacheFormat
) -> Iterator[Operator]:
    """New keys and values written to the cache, then the two kernels."""
    del hidden
    shape, size = attention_shape(component), BYTES[cache]
    written = iteration.tokens * (shape.key + shape.value)
    yield Operator("write_cache", (pointwise(written * (workload.activation_bytes + size), kind="scatter_put"),))
    if iteration.prefill:
        pairs = [_pairs(component, chunk) for chunk in iteration.prefill]
        read = sum(_kept(component, chunk.cached_tokens) for chunk in iteration.prefill)
        yield prefill_attention(iteration, shape, pairs, read * (shape.key + shape.value) * size)
    if iteration.decode_contexts:
        yield _decode(component, shape, iteration.decode_contexts, size)


def prefill_attention(iteration: Iteration, shape: AttentionShape, pairs: list[int], cache_bytes: float) -> Operator:
    """One flash kernel over *pairs* of each prompt's chunk, which reads *cache_bytes* of earlier keys and values.

    Its length is what a causal square of as many rows would have, 2 pairs / rows, and at most that of all keys.
    """
    tokens, width = iteration.prefill_tokens, shape.query + shape.key + shape.value + shape.output
    keys = sum(chunk.new_tokens * (chunk.cached_tokens + chunk.new_tokens) for chunk in iteration.prefill)
    kernel = Kernel(
        "attention",
        2.0 * shape.heads * (shape.qk_dim + shape.v_dim) * sum(pairs),
        2.0 * tokens * width + cache_bytes,
        (shape.heads, shape.qk_dim, max(1, round(min(2 * sum(pairs), keys) / tokens))),
    )
    return Operator("attention", (kernel,), output_bytes=2.0 * tokens * shape.output)


def _pairs(component: GroupedAttention, chunk: Chunk) -> int:
    if component.window is not None:
        return chunk.pairs_within(component.window)
    if component.chunk is not None:
        positions = range(chunk.cached_tokens, chunk.cached_tokens + chunk.new_tokens)
        return sum(position % component.chunk + 1 for position in positions)
    return chunk.pairs


def _kept(component: GroupedAttention, tokens: int) -> int:
    """Of *tokens* earlier ones, those that are still read."""
    bound = component.window or component.chunk
    return min(tokens, bound) if bound else tokens


def _decode(component: GroupedAttention, shape: AttentionShape, contexts: tuple[int, ...], size: int) -> Operator:
    read = sum(_kept(component, context) for context in contexts)
    rows = len(contexts)
    kernel = Kernel(
        "decode_attention",
        2.0 * shape.heads * (shape.qk_dim + shape.v_dim) * read,
        float(read * (shape.key + shape.value) * size + 2 * rows * (shape.query + shape.output)),
        (shape.heads // shape.kv_heads, shape.qk_dim, max(1, read // rows)),
    )
    return Operator("decode_attention", (kernel,), output_bytes=2.0 * rows * shape.output)
