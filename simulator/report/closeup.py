"""Which stretches of the step to enlarge: two neighbouring layers in the middle of the model, forward and backward.

The middle of the middle micro-batch is steady state: prefetches are under way and neither warm-up nor the last
reduction distorts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simulator.forecast.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of the step worth enlarging."""

    title: str
    start_ns: int
    end_ns: int


def closeups(timeline: Timeline) -> list[Window]:
    """One window per phase (forward, backward) that has tasks of a layer on the compute stream."""
    on_compute = np.array([stream == "compute" for stream in timeline.stream], bool) & (timeline.layer >= 0)
    windows = []
    for phase, also in (("forward", ()), ("backward", ("recompute",))):
        in_phase = np.array([p == phase or p in also for p in timeline.phase], bool)
        window = _middle_pair(timeline, np.flatnonzero(on_compute & in_phase), phase)
        if window:
            windows.append(window)
    return windows


def _middle_pair(timeline: Timeline, tasks: np.ndarray, phase: str) -> Window | None:
    if not len(tasks):
        return None
    micro_batch = _middle(timeline.micro_batch[tasks])
    tasks = tasks[timeline.micro_batch[tasks] == micro_batch]
    layer = _middle(timeline.layer[tasks])
    pair = tasks[(timeline.layer[tasks] == layer) | (timeline.layer[tasks] == layer + 1)]
    layers = sorted({int(i) for i in timeline.layer[pair]})
    title = f"{phase.capitalize()}, layer{'s' * (len(layers) > 1)} {' and '.join(map(str, layers))}"
    if micro_batch >= 0:
        title += f", micro-batch {micro_batch}"
    return Window(title, int(timeline.start_ns[pair].min()), int(timeline.end_ns[pair].max()))


def _middle(values: np.ndarray) -> int:
    distinct = np.unique(values)
    return int(distinct[(len(distinct) - 1) // 2])
