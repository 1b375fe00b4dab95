"""The residual addition: one kernel forward, and one backward where the branch's gradient joins the stream's."""

from __future__ import annotations

from simulator.model.operator import Operator
from simulator.model.operators.lane import Lane, pointwise


def residual_add(lane: Lane, name: str, hidden: int) -> Operator:
    """Adds a sub-layer's output to the stream; keeps nothing."""
    kernel = pointwise(3 * lane.tensor_bytes(hidden), lane.count * hidden)
    return Operator(name, (kernel,), (kernel,), output_bytes=lane.tensor_bytes(hidden))
