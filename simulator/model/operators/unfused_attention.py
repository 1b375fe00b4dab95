"""Softmax attention that writes its scores to memory, as Megatron-LM ran it where flash attention is off (2022-23).

Two batched products, the scores and their weighted sum of values, with a softmax and a dropout between them, over all
s x s scores of every sequence and head: the mask saves no work. Where their counts suit it, one kernel scales, masks
and normalises the scores in their own 16-bit format; elsewhere framework kernels do so in fp32, step by step.
Source: Megatron-LM, `CoreAttention` and `FusedScaleMaskSoftmax`.
"""

from __future__ import annotations

from simulator.model.operator import Kernel, Operator, Saved, Workload
from simulator.model.operators.attention_core import ATTENTION_OUTPUT, AttentionShape
from simulator.model.operators.lane import FP32_BYTES, Lane, Step, chain, pointwise

MASK_BYTES = 1
"""Bytes of an element of a mask."""
_FUSED_LENGTHS = range(17, 4097)
_SHORT = 128
_SOFTMAX_FLOPS = 5


def unfused_attention(lane: Lane, workload: Workload, shape: AttentionShape) -> Operator:
    """The attention core; sequences are padded to the longest, keys and values repeated for each head of a group."""
    heads, length = len(workload.sequence_lengths) * shape.heads, max(workload.sequence_lengths)
    scores, fused = heads * length * length, has_fused_softmax(heads, length)
    return Operator(
        "attention",
        forward=_forward(lane, workload, shape, scores, fused=fused),
        backward=_backward(lane, workload, shape, scores, fused=fused),
        saved=_saved(lane, workload, shape, scores, fused=fused),
        modules=("core_attn",),
        makes=ATTENTION_OUTPUT,
        output_bytes=lane.tensor_bytes(shape.output),
        workspace_bytes=scores * (lane.element_bytes if fused else 2 * FP32_BYTES),
        backward_workspace_bytes=scores * (2 * lane.element_bytes if fused else 2 * FP32_BYTES),
    )


def has_fused_softmax(heads: int, length: int) -> bool:
    """Whether one kernel does the softmax of *length* x *length* scores of so many *heads*, over all sequences.

    Its blocks take four heads at once, eight where the length is at most 128.
    """
    at_once = 8 if length <= _SHORT else 4
    return length in _FUSED_LENGTHS and length % 4 == 0 and heads % at_once == 0


def _forward(lane: Lane, workload: Workload, shape: AttentionShape, scores: int, *, fused: bool) -> tuple[Kernel, ...]:
    """Keys and values repeated, scores, softmax, dropout, weighted sum, and its heads brought beside each other."""
    b, output = lane.element_bytes, lane.tensor_bytes(shape.output)
    softmax = (
        chain(scores, Step("softmax", 2 * b))
        if fused
        else chain(
            scores,
            Step("cast_up", b + FP32_BYTES),
            Step("elementwise", 2 * FP32_BYTES, "fp32"),
            Step("masked_fill", 2 * FP32_BYTES + MASK_BYTES, "fp32"),
            Step("softmax", 2 * FP32_BYTES, "fp32"),
            Step("cast_down", FP32_BYTES + b),
        )
    )
    return (
        *_repeat(lane, shape, "copy"),
        _product(lane, workload, shape, shape.qk_dim),
        *softmax,
        *(chain(scores, Step("elementwise", 2 * b + MASK_BYTES)) if workload.dropout else ()),
        _product(lane, workload, shape, shape.v_dim),
        pointwise(2 * output, kind="transpose"),
    )


def _backward(lane: Lane, workload: Workload, shape: AttentionShape, scores: int, *, fused: bool) -> tuple[Kernel, ...]:
    """Gradients of probabilities and values, of the dropout, of the softmax, of queries and keys; then of the groups.

    Forward, the product scales the scores; backward, a kernel apiece scales the gradients of queries and keys. The
    three gradients are copied into that of the projection that the three are parts of.
    """
    b = lane.element_bytes
    softmax = (
        chain(scores, Step("softmax", 3 * b))
        if fused
        else chain(
            scores,
            Step("cast_up", b + FP32_BYTES),
            Step("softmax", 3 * FP32_BYTES, "fp32"),
            Step("masked_fill", 2 * FP32_BYTES + MASK_BYTES, "fp32"),
            Step("elementwise", 2 * FP32_BYTES, "fp32"),
            Step("cast_down", FP32_BYTES + b),
        )
    )
    return (
        *(_product(lane, workload, shape, shape.v_dim) for _ in range(2)),
        *(chain(scores, Step("elementwise", 2 * b + MASK_BYTES)) if workload.dropout else ()),
        *softmax,
        *(_product(lane, workload, shape, shape.qk_dim) for _ in range(2)),
        *(pointwise(2 * lane.tensor_bytes(shape.query)) for _ in range(2)),
        *_repeat(lane, shape, "reduction"),
        pointwise(2 * lane.tensor_bytes(shape.query + shape.key + shape.value), kind="cat"),
    )


def _product(lane: Lane, workload: Workload, shape: AttentionShape, dim: int) -> Kernel:
    """A product between the scores of every head and one of its matrices, *dim* wide: priced as one of all rows.

    It is as large whether the scores are its result or one of its operands.
    """
    heads, length = len(workload.sequence_lengths) * shape.heads, max(workload.sequence_lengths)
    moved = lane.element_bytes * heads * length * (length + 2 * dim)
    return Kernel("gemm", 2.0 * heads * length * length * dim, moved, (heads * length, length, dim), lane.dtype)


def _repeat(lane: Lane, shape: AttentionShape, kind: str) -> tuple[Kernel, ...]:
    """Keys and values between their groups and all heads, a kernel each; nothing where each head has its own."""
    if shape.kv_heads == shape.heads:
        return ()
    return tuple(
        pointwise(lane.tensor_bytes((shape.kv_heads + shape.heads) * dim), kind=kind)
        for dim in (shape.qk_dim, shape.v_dim)
    )


def _saved(lane: Lane, workload: Workload, shape: AttentionShape, scores: int, *, fused: bool) -> tuple[Saved, ...]:
    """Operands of both products, the softmax's result in its own format, and what the dropout drew.

    Without dropout, the second product's operand is the fused softmax's result itself.
    """
    b = lane.element_bytes
    kept = [
        lane.saved("query", shape.query),
        lane.saved("key", shape.heads * shape.qk_dim),
        lane.saved("value", shape.heads * shape.v_dim),
        Saved("attention_probabilities", float(b * scores)),
    ]
    if not fused:
        kept.append(Saved("attention_softmax", float(FP32_BYTES * scores)))
    elif workload.dropout:
        kept.append(Saved("attention_softmax", float(b * scores)))
    if workload.dropout:
        kept.append(Saved("attention_dropout", float(MASK_BYTES * scores)))
    return (*kept, lane.saved(ATTENTION_OUTPUT, shape.output))
