"""Operators of an iteration as steps of the device, and the steps one after the other.

The host issues kernels and waits for none but counts of rows; the device runs them in order. So the device takes up a
step when it has done the one before and the host has issued it. In a CUDA graph the host has issued all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from simulator.program.serving.iteration import Parts

PartName = Literal[
    "attention_s",
    "dense_s",
    "experts_s",
    "exchange_s",
    "tensor_parallel_s",
    "small_kernels_s",
    "head_s",
    "pipeline_s",
    "host_s",
]


@dataclass(frozen=True, slots=True)
class Step:
    """Kernels of one sort, or a transfer."""

    part: PartName
    seconds: float
    grade: str
    launches: int = 0
    waited_for: bool = False
    """The host waits until it is done."""
    taken: float = 0.0
    """Of a transfer: share of the compute units that it occupies."""


def in_order(steps: Iterable[Step], launch_s: float) -> Parts:
    """Parts of *steps* on one stream, whose host takes *launch_s* a launch: 0 in a graph."""
    found: dict[str, float] = {}
    device_s = host_s = waited_s = 0.0
    for step in steps:
        host_s += step.launches * launch_s
        waited_s += max(0.0, host_s - device_s)
        device_s = max(device_s, host_s) + step.seconds
        if step.waited_for:
            host_s = device_s
        found[step.part] = found.get(step.part, 0.0) + step.seconds
    return Parts(**found, launch_bound_s=waited_s)


def grades_of(steps: Iterable[Step]) -> dict[str, float]:
    """Seconds of *steps* by grade."""
    found: dict[str, float] = {}
    for step in steps:
        found[step.grade] = found.get(step.grade, 0.0) + step.seconds
    return found
