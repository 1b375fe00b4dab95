"""How much of each stream's time is hidden: its tasks ran while the compute stream of the same rank did, too.

A collective counts from when its rank came to it, so waiting for other ranks is part of its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.report.lanes import lanes_of

if TYPE_CHECKING:
    from simulator.forecast.timeline import Timeline
    from simulator.report.lanes import Lane


@dataclass(frozen=True, slots=True)
class Exposure:
    """Seconds of one stream of one rank."""

    stream: str
    hidden_s: float
    """Beside computation."""
    exposed_s: float
    """While nothing was computed."""


def exposures(timeline: Timeline, column: int) -> list[Exposure]:
    """Of every stream beside compute and host that the telling rank *column* uses, from top to bottom."""
    lanes = [lane for lane in lanes_of(timeline) if lane.column == column]
    compute = next((lane for lane in lanes if lane.stream == "compute"), None)
    return [
        found
        for lane in lanes
        if lane.stream not in ("compute", "host")
        and (found := _exposure(timeline, lane, compute)).hidden_s + found.exposed_s > 0
    ]


def _exposure(timeline: Timeline, lane: Lane, compute: Lane | None) -> Exposure:
    start, end = timeline.start_ns[lane.tasks, lane.column], timeline.end_ns[lane.tasks, lane.column]
    busy_ns, hidden_ns = int((end - start).sum()), 0.0
    if compute is not None and len(compute.tasks):
        moments, spent = _computed(timeline, compute)
        hidden_ns = float((np.interp(end, moments, spent) - np.interp(start, moments, spent)).sum())
    return Exposure(lane.stream, hidden_ns / 1e9, (busy_ns - hidden_ns) / 1e9)


def _computed(timeline: Timeline, lane: Lane) -> tuple[np.ndarray, np.ndarray]:
    """Moments in ns and the time computed until each: linear between starts and ends, since tasks never overlap."""
    start, end = timeline.start_ns[lane.tasks, lane.column], timeline.end_ns[lane.tasks, lane.column]
    spent = np.concatenate(([0], np.cumsum(end - start)))
    return np.stack((start, end), axis=1).ravel(), np.stack((spent[:-1], spent[1:]), axis=1).ravel()
