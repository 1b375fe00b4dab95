"""A long run as events: work, checkpoints, failures, restarts, nodes in repair.

Failures arrive at random, at a constant rate (exponential times between them). What was done since the last checkpoint
that is safe is done again. Between two failures nothing is random, so that whole stretches of work and checkpoints are
one event; a failure, a restart and a node that comes back are the others.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class LongRun:
    """What is to be done and what may happen meanwhile; seconds throughout."""

    work_s: float
    """All of it, without an interruption."""
    interval_s: float
    """Work between two checkpoints; the last stretch has none behind it."""
    stall_s: float
    """Work stands still for so long at each checkpoint."""
    safe_s: float
    """From the beginning of a checkpoint until a restart can use it; no longer than an interval and a stall."""
    restart_s: float
    """From a failure until work goes on, where a node is there to go on with."""
    interruptions_per_s: float
    """Failures after which the same nodes go on."""
    broken_nodes_per_s: float
    """Failures that take a node out."""
    repair_s: float
    spare_nodes: int = 0


@dataclass(slots=True)
class Spent:
    """Where the time of one run went, in seconds."""

    work_s: float = 0.0
    checkpoints_s: float = 0.0
    rework_s: float = 0.0
    """Work and checkpoints that a failure undid."""
    restarts_s: float = 0.0
    waiting_s: float = 0.0
    """For a node in repair, with no spare one left."""
    failures: int = 0

    @property
    def wall_s(self) -> float:
        """All of it."""
        return self.work_s + self.checkpoints_s + self.rework_s + self.restarts_s + self.waiting_s


def go_through(run: LongRun, rng: np.random.Generator) -> Spent:
    """One course that *run* may take. Raise :exc:`ValueError` where it is as good as never done."""
    return _Course(run, rng).spent


@dataclass(slots=True)
class _Course:
    run: LongRun
    rng: np.random.Generator
    spent: Spent = field(default_factory=Spent)
    repaired: list[float] = field(default_factory=list)
    """When each node in repair comes back."""

    def __post_init__(self) -> None:
        done, cycle_s = 0, self.run.interval_s + self.run.stall_s
        # The last stretch is work alone, and at most an interval long.
        cycles = max(0, int(np.ceil(self.run.work_s / self.run.interval_s - 1e-9)) - 1)
        last_s = self.run.work_s - cycles * self.run.interval_s
        most = 1000 * (cycles + 1)
        while True:
            free_s = self._until_failure()
            left_s = (cycles - done) * cycle_s + last_s
            if free_s >= left_s:
                self._did(cycles - done)
                self.spent.work_s += last_s
                return
            safe = self._safe(free_s, cycle_s, cycles - done)
            done += safe
            self._did(safe)
            self.spent.rework_s += free_s - safe * cycle_s
            self._fail()
            if self.spent.failures > most:
                raise ValueError(f"{done} of {cycles} checkpoints after {most} failures: failures leave it no time")

    def _safe(self, free_s: float, cycle_s: float, cycles: int) -> int:
        """Checkpoints that a restart can use after *free_s* without failure."""
        first_s = self.run.interval_s + self.run.safe_s
        return 0 if free_s < first_s else min(cycles, 1 + int((free_s - first_s) // cycle_s))

    def _did(self, cycles: int) -> None:
        self.spent.work_s += cycles * self.run.interval_s
        self.spent.checkpoints_s += cycles * self.run.stall_s

    def _fail(self) -> None:
        """Restart, again if something fails meanwhile, on nodes that are whole."""
        again = True
        while again:
            self.spent.failures += 1
            if self.rng.random() * self._failures_per_s < self.run.broken_nodes_per_s:
                self._break_node()
            free_s = self._until_failure()
            again = free_s < self.run.restart_s
            self.spent.restarts_s += min(free_s, self.run.restart_s)

    def _break_node(self) -> None:
        now = self.spent.wall_s
        while self.repaired and self.repaired[0] <= now:
            heapq.heappop(self.repaired)
        heapq.heappush(self.repaired, now + self.run.repair_s)
        if len(self.repaired) > self.run.spare_nodes:
            self.spent.waiting_s += heapq.heappop(self.repaired) - now

    def _until_failure(self) -> float:
        return float(self.rng.exponential(1 / self._failures_per_s)) if self._failures_per_s else np.inf

    @property
    def _failures_per_s(self) -> float:
        return self.run.interruptions_per_s + self.run.broken_nodes_per_s
