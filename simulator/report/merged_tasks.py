"""Fewer bars of a timeline without losing what it shows: tasks too short to see are drawn together.

Neighbours of one lane that are shorter than a limit become one bar, with the gaps between them that are shorter than
it, too; the longest of them stands for all, and how long each colour took is kept. Every longer task, and every longer
gap, stays as it is, and so does all in the close-ups. So what is lost is the order of tasks within a stretch of short
ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.report.lanes import groups_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simulator.forecast.timeline import Timeline
    from simulator.report.closeup import Window
    from simulator.report.lanes import Lane

_FINEST_NS, _FINER = 1e3, 1.25
"""The first limit that is tried, and what each is of the one before."""


@dataclass(frozen=True, slots=True)
class Bars:
    """What is drawn of one lane, in order of time; entry i of each array is bar i."""

    lane: Lane
    task: np.ndarray
    """int: the task that it is, or that stands for those that it is."""
    tasks: np.ndarray
    """int: how many it is."""
    start_ns: np.ndarray
    end_ns: np.ndarray
    busy_ns: np.ndarray
    """[groups, bars]: what of its length is spent on each group of kinds."""


@dataclass(frozen=True, slots=True)
class _Tasks:
    """The tasks of a lane, in order of time; those that take no time are left out."""

    lane: Lane
    task: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    kept: np.ndarray
    """bool: lies in a close-up."""

    def bars(self, limit_ns: float) -> np.ndarray:
        """The number of the bar of each task where those shorter than *limit_ns* are drawn together."""
        if not len(self.task):
            return np.zeros(0, np.int64)
        short = ~self.kept & (self.end_ns - self.start_ns < limit_ns)
        joins = short[1:] & short[:-1] & (self.start_ns[1:] - self.end_ns[:-1] < limit_ns)
        return np.concatenate(([0], np.cumsum(~joins)))


def merged(timeline: Timeline, lanes: Iterable[Lane], windows: Sequence[Window], most: int) -> tuple[list[Bars], float]:
    """Bars of *lanes*, about *most* together, and the limit in ns below which tasks outside *windows* are drawn
    together; zero where every task has a bar of its own.
    """
    rows, limit_ns = [_tasks(timeline, lane, windows) for lane in lanes], 0.0
    while limit_ns <= timeline.end_ns.max() and sum(_count(row.bars(limit_ns)) for row in rows) > most:
        limit_ns = _FINER * limit_ns if limit_ns else _FINEST_NS
    groups, group = groups_of(timeline)
    return [_merged(row, row.bars(limit_ns), len(groups), group) for row in rows], limit_ns


def _tasks(timeline: Timeline, lane: Lane, windows: Sequence[Window]) -> _Tasks:
    start, end = timeline.start_ns[lane.tasks, lane.column], timeline.end_ns[lane.tasks, lane.column]
    some = end > start
    task, start, end = lane.tasks[some], start[some], end[some]
    kept = np.zeros(len(task), bool)
    for window in windows:
        kept |= (end > window.start_ns) & (start < window.end_ns)
    return _Tasks(lane, task, start, end, kept)


def _count(bar: np.ndarray) -> int:
    return int(bar[-1]) + 1 if len(bar) else 0


def _merged(row: _Tasks, bar: np.ndarray, groups: int, group: np.ndarray) -> Bars:
    length = row.end_ns - row.start_ns
    # Sorted by bar, then by length: the last of each bar is its longest.
    order = np.lexsort((length, bar))
    last = np.flatnonzero(np.diff(bar, append=len(bar)))
    first = np.concatenate(([0], last[:-1] + 1)) if len(last) else last
    busy = np.zeros((groups, len(last)), np.int64)
    np.add.at(busy, (group[row.task], bar), length)
    return Bars(row.lane, row.task[order[last]], last - first + 1, row.start_ns[first], row.end_ns[last], busy)
