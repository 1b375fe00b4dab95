"""The residual addition: one kernel forward, and one backward where the branch's gradient joins the stream's.

A dropout of the sub-layer's output, before the addition, keeps a mask of a byte an element. Hand-fused and compiled
code draws, drops and adds in one kernel; its gradient is a kernel of its own everywhere.
"""

from __future__ import annotations

from simulator.model.operator import Operator, Saved
from simulator.model.operators.lane import Lane, pointwise


def residual_add(lane: Lane, name: str, hidden: int, *, dropout: bool = False) -> Operator:
    """Adds a sub-layer's output to the stream; keeps nothing but what a *dropout* drew."""
    one, mask = lane.tensor_bytes(hidden), float(lane.count * hidden)
    add, drop = pointwise(3 * one, lane.count * hidden), pointwise(2 * one + mask, lane.count * hidden)
    if not dropout:
        return Operator(name, (add,), (add,), output_bytes=one)
    forward = (drop, add) if lane.eager else (pointwise(3 * one + mask, 2 * lane.count * hidden),)
    return Operator(name, forward, (add, drop), saved=(Saved(f"{name}.dropout", mask),), output_bytes=one)
