"""A recording: when the tasks of one part were issued, taken up, begun and ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.engine.task import Vector


@dataclass(frozen=True, slots=True)
class Recording:
    """What happened in one part: times in ns, rows are tasks in program order, columns behaviours.

    A large part has hundreds of thousands of rows. Two of four times of each are therefore not kept but follow: the
    host issues one task after the other from where it last waited, and kernels begin when they are taken up.
    """

    clock_ns: Vector
    """When the host began with each of its segments, [segments, behaviours]."""
    segment: Vector
    """That of each task."""
    cost_ns: Vector
    """What it took the host from there until it had issued each task."""
    start_ns: Vector
    """When its stream took it up; a collective's member then waits for the others."""
    end_ns: Vector
    row: Vector
    """Of each collective its row in *met_ns*; -1 for kernels."""
    met_ns: Vector
    """When the last member of the group of each collective had come, [collectives, behaviours]."""

    @classmethod
    def of(cls, issue_ns: Vector, start_ns: Vector, begin_ns: Vector, end_ns: Vector) -> Recording:
        """That of all four times."""
        each = np.arange(len(end_ns))
        return cls(issue_ns, each, np.zeros_like(each), start_ns, end_ns, each, begin_ns)

    @property
    def step_ns(self) -> int:
        """When the last task of the slowest rank ended."""
        return int(self.end_ns.max(initial=0))

    @property
    def issue_ns(self) -> Vector:
        """When the host had issued the task."""
        return self.issued_ns(slice(None))

    @property
    def begin_ns(self) -> Vector:
        """When work began: for a collective, when the last member of the group had come."""
        begin = self.start_ns.copy()
        begin[self.row >= 0] = self.met_ns
        return begin

    def issued_ns(self, tasks: Vector | slice) -> Vector:
        """When the host had issued some *tasks*."""
        issued: Vector = self.clock_ns[self.segment[tasks]] + self.cost_ns[tasks, None]
        return issued
