"""Depthwise causal convolution over a few tokens with SiLU, before linear-attention and state-space mixers.

2 taps FLOPs an element and SiLU's 5; one read and one write each way (models_and_formulas section 3.3). Keeps its
input; backward computes the activation again.
"""

from __future__ import annotations

from simulator.model.operator import Kernel, Operator
from simulator.model.operators.lane import Lane, pointwise

_SILU_FLOPS = 5


def short_convolution(lane: Lane, name: str, source: str, width: int, taps: int, weights: tuple[str, ...]) -> Operator:
    """*taps* tokens of *width* channels, in as many kernels as there are weight tensors that end in "weight"."""
    launches = sum(weight.endswith("weight") for weight in weights)
    one, flops = lane.tensor_bytes(width), (2.0 * taps + _SILU_FLOPS) * lane.count * width
    return Operator(
        name,
        forward=(Kernel("conv", flops, 2 * one, (width, taps), lane.dtype, launches=launches),),
        backward=(Kernel("conv", 2 * flops, 3 * one, (width, taps), lane.dtype, launches=launches),),
        backward_weight=(pointwise(lane.element_bytes * width * taps, launches=launches),),
        weights=weights,
        saved=(lane.saved(source, width),),
        output_bytes=one,
    )
