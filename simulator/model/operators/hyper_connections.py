"""Manifold-constrained hyper-connections (DeepSeek-V4): several residual streams, read and written by learnt mixes.

Before a sub-layer one thin fp32 product over all n streams yields (2 + n) n mixing weights, normalised by Sinkhorn
iterations; the streams are summed into the sub-layer's input. After it they are mixed and take up its output. Counted
as two kernels each way over the streams' traffic, in every mode: 2 n D (2 + n) n FLOPs for the weights, 2 n D for the
input, 2 n D (n + 1) for the output, a token.
"""

from __future__ import annotations

from simulator.model.operator import Operator, Saved
from simulator.model.operators.lane import FP32_BYTES, Lane, pointwise


def read_streams(lane: Lane, name: str, source: str, hidden: int, streams: int, weights: tuple[str, ...]) -> Operator:
    """Mixing weights from the streams named *source*, and their weighted sum."""
    elements, mixes = lane.count * streams * hidden, (2 + streams) * streams
    all_bytes, one = lane.tensor_bytes(streams * hidden), lane.tensor_bytes(hidden)
    mixing = FP32_BYTES * lane.count * mixes
    flops = 2.0 * elements * (mixes + 1)
    return Operator(
        name,
        forward=(
            pointwise(all_bytes + mixing, 2.0 * elements * mixes),
            pointwise(all_bytes + one + mixing, 2.0 * elements),
        ),
        backward=(pointwise(2 * all_bytes + one + 2 * mixing, flops), pointwise(2 * all_bytes + mixing, flops)),
        backward_weight=(pointwise(all_bytes + mixing, 2.0 * elements * mixes),),
        weights=weights,
        saved=(lane.saved(source, streams * hidden), Saved(f"{name}.mixing", mixing)),
        output_bytes=one,
    )


def write_streams(lane: Lane, name: str, source: str, hidden: int, streams: int) -> Operator:
    """The streams mixed among themselves, plus the sub-layer's output (kept, for the mixing weights' gradient)."""
    elements = lane.count * streams * hidden
    all_bytes, one = lane.tensor_bytes(streams * hidden), lane.tensor_bytes(hidden)
    flops = 2.0 * elements * (streams + 1)
    return Operator(
        name,
        forward=(pointwise(2 * all_bytes + one, flops),),
        backward=(pointwise(4 * all_bytes + 2 * one, 2 * flops),),
        saved=(lane.saved(source, hidden),),
        output_bytes=all_bytes,
    )
