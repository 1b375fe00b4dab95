"""Geometry of the timeline chart: which lane a task lies in, its bar, or the shares of many tasks too thin to see.

A lane with more bars than can be told apart shows, per bin of time, the share spent on each colour, stacked. Both
pictures have the same area for the same time, and what stays white is waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.report.kinds import Group, group_of, streams_in_order

if TYPE_CHECKING:
    from simulator.forecast.timeline import Timeline

BAR_HEIGHT = 0.8
_GROUP_GAP = 0.7


@dataclass(frozen=True, slots=True)
class Lane:
    """One stream of one telling rank, at height *y* from its lower edge."""

    column: int
    """Column of the rank in the timeline's arrays."""
    stream: str
    y: float
    tasks: np.ndarray
    """Indices of its tasks, by start."""


def lanes_of(timeline: Timeline) -> list[Lane]:
    """All lanes, top rank first; y grows downwards, with a gap between ranks."""
    streams = streams_in_order(timeline.stream)
    number = {stream: i for i, stream in enumerate(streams)}
    stream_of_task = np.array([number[stream] for stream in timeline.stream], np.int64)
    lanes = []
    for column in range(len(timeline.ranks)):
        for i, stream in enumerate(streams):
            tasks = np.flatnonzero(stream_of_task == i)
            tasks = tasks[np.argsort(timeline.start_ns[tasks, column], kind="stable")]
            lanes.append(Lane(column, stream, column * (len(streams) + _GROUP_GAP) + i, tasks))
    return lanes


def groups_of(timeline: Timeline) -> tuple[list[Group], np.ndarray]:
    """The groups of kinds that occur, and the position in that list of each task's group."""
    by_kind = {kind: group_of(kind) for kind in dict.fromkeys(timeline.kind)}
    found = list(dict.fromkeys(by_kind.values()))
    position = {kind: found.index(group) for kind, group in by_kind.items()}
    return found, np.array([position[kind] for kind in timeline.kind], np.int64)


def bars(timeline: Timeline, lane: Lane, tasks: np.ndarray) -> np.ndarray:
    """Rectangles [tasks, 4 corners, (x in seconds, y)] of *tasks* of *lane*."""
    left = timeline.start_ns[tasks, lane.column] / 1e9
    right = timeline.end_ns[tasks, lane.column] / 1e9
    low, high = np.full(len(tasks), lane.y), np.full(len(tasks), lane.y + BAR_HEIGHT)
    corners = ((left, low), (left, high), (right, high), (right, low))
    return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)


def busy_shares(timeline: Timeline, lane: Lane, group: np.ndarray, groups: int, edges_ns: np.ndarray) -> np.ndarray:
    """Share of each bin between *edges_ns* that *lane* spends on each group: [groups, bins], columns summing to at
    most 1.

    Exact for tasks that do not overlap, as those of one stream never do: the time spent until any moment is linear
    between starts and ends.
    """
    shares = np.zeros((groups, len(edges_ns) - 1))
    for i in range(groups):
        tasks = lane.tasks[group[lane.tasks] == i]
        if not len(tasks):
            continue
        start, end = timeline.start_ns[tasks, lane.column], timeline.end_ns[tasks, lane.column]
        spent = np.concatenate(([0], np.cumsum(end - start)))
        moments = np.stack((start, end), axis=1).ravel()
        until = np.stack((spent[:-1], spent[1:]), axis=1).ravel()
        shares[i] = np.diff(np.interp(edges_ns, moments, until)) / np.diff(edges_ns)
    return shares


def phase_runs(timeline: Timeline, lane: Lane) -> list[tuple[str, int, int, int]]:
    """Stretches of one phase of one micro-batch on *lane*: phase, micro-batch, start and end in ns.

    Recomputation belongs to the backward pass that asks for it.
    """
    phases = list(dict.fromkeys(timeline.phase))
    merged = {
        phase: phases.index("backward" if phase == "recompute" and "backward" in phases else phase) for phase in phases
    }
    phase = np.array([merged[timeline.phase[task]] for task in lane.tasks.tolist()], np.int64)
    micro_batch = timeline.micro_batch[lane.tasks]
    changes = np.flatnonzero(np.diff(phase) | np.diff(micro_batch)) + 1
    starts, ends = lane.tasks[[0, *changes]], lane.tasks[[*(changes - 1), -1]]
    return [
        (
            phases[phase[i]],
            int(micro_batch[i]),
            int(timeline.start_ns[first, lane.column]),
            int(timeline.end_ns[last, lane.column]),
        )
        for i, first, last in zip([0, *changes.tolist()], starts, ends, strict=True)
    ]
