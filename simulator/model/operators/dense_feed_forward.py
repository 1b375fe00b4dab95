"""A dense feed-forward part: up (and gate) projections, activation, down projection."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import DenseFeedForward
from simulator.model.operator import Operator, Workload
from simulator.model.operators.activation import activation
from simulator.model.operators.communication import enter, leave
from simulator.model.operators.gemm import linear
from simulator.model.operators.lane import FEED_FORWARD_INPUT, gathered_lane, token_lane
from simulator.model.split import Split

SPLITS = (Split("intermediate", "the intermediate width"),)


def operators(component: DenseFeedForward, hidden: int, workload: Workload) -> tuple[Operator, ...]:
    """Operators of *component* in a model *hidden* wide."""
    return tuple(feed_forward(component, workload, hidden, "mlp", shares_input=False))


def feed_forward(
    component: DenseFeedForward, workload: Workload, hidden: int, prefix: str, *, shares_input: bool
) -> Iterator[Operator]:
    """The part whose weights begin with *prefix*; gate and up are one product in a fused stack, two elsewhere."""
    lane, gathered = token_lane(workload), gathered_lane(workload)
    label = prefix.removeprefix("mlp").removeprefix(".")
    label = f"{label}_" if label else ""
    names, width = ("gate", "up") if component.gated else ("up",), component.intermediate
    yield from enter(workload, hidden, tuple(f"{prefix}.{name}_proj.weight" for name in names))
    groups = (names,) if lane.execution == "fused" else tuple((name,) for name in names)
    for number, group in enumerate(groups):
        weights = tuple(f"{prefix}.{name}_proj.weight" for name in group)
        yield linear(
            gathered, label + "_".join(group), FEED_FORWARD_INPUT, hidden, len(group) * width, weights,
            bias=component.bias, shares_input=shares_input or number > 0, makes=f"{label}hidden",
        )  # fmt: skip
    yield activation(lane, f"{label}activation", f"{label}hidden", width, component.activation, gated=component.gated)
    down = (f"{prefix}.down_proj.weight",)
    yield linear(lane, f"{label}down", f"{label}activated", width, hidden, down, bias=component.bias)
    yield from leave(workload, hidden)
