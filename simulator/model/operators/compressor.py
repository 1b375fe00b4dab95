"""The compressor of DeepSeek-V4: windows of tokens become one key each, by a softmax-weighted sum.

Two projections yield values and weights; at a ratio of 4 neighbouring windows overlap and both are twice as wide. One
kernel weights and sums in every mode; the compressed keys are normed and rotated, which is little work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.model.operator import Operator
from simulator.model.operators.gemm import linear
from simulator.model.operators.lane import FP32_BYTES, MIXER_INPUT, Lane, pointwise
from simulator.model.operators.norm import NormShape, rms_norm

_OVERLAPPING_RATIO = 4
_FLOPS_PER_ELEMENT = 8


def compressor(lane: Lane, name: str, hidden: int, head_dim: int, ratio: int, prefix: str) -> Iterator[Operator]:
    """Operators that make one key of *head_dim* elements for every *ratio* tokens; *prefix* begins the weights."""
    width = 2 * head_dim if ratio == _OVERLAPPING_RATIO else head_dim
    for part in ("kv", "gate"):
        weights = (f"{prefix}.{part}_proj.weight",)
        yield linear(lane, f"{name}_{part}", MIXER_INPUT, hidden, width, weights, shares_input=True)
    keys = replace(lane, count=lane.count // ratio)
    yield _weighted_sum(lane, keys, name, width, head_dim, ratio, prefix)
    yield rms_norm(keys, f"{name}_norm", f"{name}_key", NormShape(head_dim), f"{prefix}.kv_norm.weight")


def _weighted_sum(lane: Lane, keys: Lane, name: str, width: int, head_dim: int, ratio: int, prefix: str) -> Operator:
    inputs, output = lane.tensor_bytes(2 * width), keys.tensor_bytes(head_dim)
    flops = float(_FLOPS_PER_ELEMENT * lane.count * width)
    return Operator(
        f"{name}_sum",
        forward=(pointwise(inputs + output, flops, kind="softmax"),),
        backward=(pointwise(2 * inputs + output, 2 * flops, kind="softmax"),),
        backward_weight=(pointwise(2 * FP32_BYTES * ratio * width),),
        weights=(f"{prefix}.position_bias",),
        saved=(lane.saved(f"{name}_kv", width), lane.saved(f"{name}_gate", width)),
        output_bytes=output,
    )


def compressed_pairs(lengths: tuple[int, ...], ratio: int, limit: int | None = None) -> int:
    """Query-key pairs where each query sees one key for every *ratio* tokens so far, *limit* at most."""
    return sum(_pairs(length, ratio, limit) for length in lengths)


def _pairs(length: int, ratio: int, limit: int | None) -> int:
    """Sum of min(t // ratio, limit) for t = 1 ... length: each count below the last holds for *ratio* tokens."""
    last = length // ratio if limit is None else min(length // ratio, limit)
    return ratio * last * (last - 1) // 2 + last * (length - last * ratio + 1) if last else 0
