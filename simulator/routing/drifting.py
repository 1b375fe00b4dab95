"""Popularity that changes from step to step, as measured in a trace or as asked for.

Each expert's log popularity wanders around where the table has it: a deviation with a standard deviation *spread* that
keeps a share *persistence* of itself from step to step and is renewed in the rest (an Ornstein-Uhlenbeck process).
After every step the layer gets the table's own distribution back, so that its skew stays and only who is hot changes.
Sudden changes of the data, such as a new domain, are not such a process; W6 and W7 of the named workloads are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simulator.routing.cap import cap_counts
from simulator.routing.resample import log_popularity
from simulator.routing.table import FloatArray, RoutingTable
from simulator.routing.trace import Trace

_MOST_PERSISTENT = 0.9999


@dataclass(frozen=True, slots=True)
class DriftLaw:
    """How far experts wander, and how slowly."""

    spread: float
    """Standard deviation of log popularity around its long-run mean."""
    persistence: float
    """Of a deviation, what is left a step later, 0 to 1."""


def measure_drift(trace: Trace) -> DriftLaw | None:
    """The law that *trace*'s windows follow, a window counting as a step; None with fewer than three windows.

    Found from the mean squared change of log counts between neighbouring windows and between windows half a trace
    apart; what drawing tokens at random adds to them (1 / count each) is taken off. Experts with fewer than ten in a
    window are left out.
    """
    counts = trace.counts.sum(axis=1)
    if len(counts) < 3:
        return None
    far = max(2, len(counts) // 2)
    near_change, far_change = _change(counts, 1), _change(counts, far)
    if near_change <= 0:
        return DriftLaw(0.0, 0.0)
    persistence = _persistence(far_change / near_change, far)
    return DriftLaw(float(np.sqrt(near_change / 2 / (1 - persistence))), persistence)


def drifting(
    table: RoutingTable, steps: int, law: DriftLaw, top_k: int, rng: np.random.Generator
) -> Iterator[RoutingTable]:
    """*steps* tables that begin as *table* and follow *law*; no expert is above 1/*top_k* of a layer.

    Raise :exc:`ValueError` when *top_k* exceeds the experts.
    """
    start = np.stack([log_popularity(row) for row in table.counts])
    sorted_counts = np.sort(table.counts, axis=1)
    away = np.zeros_like(start)
    for step in range(steps):
        rank = np.argsort(np.argsort(start + away, axis=1, kind="stable"), axis=1, kind="stable")
        counts = cap_counts(np.take_along_axis(sorted_counts, rank, axis=1), top_k)
        yield RoutingTable(counts, f"{table.name}, step {step}", table.source, table.recorded_layers)
        renewed = rng.standard_normal(start.shape) * law.spread * np.sqrt(1 - law.persistence**2)
        away = law.persistence * away + renewed


def _change(counts: FloatArray, lag: int) -> float:
    """Mean squared change of log counts over *lag* windows, less what chance adds."""
    before, after = counts[:-lag], counts[lag:]
    known = (before >= 10) & (after >= 10)
    before, after = before[known], after[known]
    if not before.size:
        return 0.0
    return float((np.log(after / before) ** 2 - 1 / before - 1 / after).mean())


def _persistence(ratio: float, lag: int) -> float:
    """The p with (1 - p^lag) / (1 - p) = *ratio*, by bisection."""
    low, high = 0.0, _MOST_PERSISTENT
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 - middle**lag) / (1 - middle) < ratio else (low, middle)
    return high
