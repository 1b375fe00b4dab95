"""RMSNorm of a linear-attention or state-space mixer's output times a gate: one kernel in every mode.

It keeps both inputs and one fp32 number a vector.
"""

from __future__ import annotations

from simulator.model.operator import Operator, Saved
from simulator.model.operators.lane import FP32_BYTES, Lane, pointwise

GATED_NORM_OUTPUT = "mixed_normed"
"""Name of the saved tensor that the output projection reads."""
GATED_NORM_INPUT = "mixed"
"""Name of the saved tensor that it normalises."""
_FLOPS_PER_ELEMENT = 9


def gated_norm(lane: Lane, groups: int, width: int, weight: str) -> Operator:
    """Norm over *groups* vectors of *width* elements in each token, times the gate's function."""
    elements, statistics = groups * width, lane.count * groups * FP32_BYTES
    one, flops = lane.tensor_bytes(elements), float(_FLOPS_PER_ELEMENT * lane.count * elements)
    return Operator(
        "gated_norm",
        forward=(pointwise(3 * one + statistics, flops, kind="norm"),),
        backward=(pointwise(5 * one + statistics, 2 * flops, kind="norm"),),
        backward_weight=(pointwise(2 * width * FP32_BYTES, kind="norm"),),
        weights=(weight,),
        saved=(
            lane.saved(GATED_NORM_INPUT, elements),
            lane.saved("gate_projection", elements),
            Saved("mixed_statistics", statistics),
        ),
        output_bytes=one,
    )
