"""A program made ready to run: what of it does not depend on when things happen, found once for all of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulator.engine.recording import Recording
from simulator.engine.task import Collective, Task, Vector


class Members(NamedTuple):
    """Behaviours by group: *order* puts those of a group side by side, and each group starts at one of *starts*."""

    order: Vector
    starts: Vector
    group: Vector
    """Place among *starts* of the group of each behaviour."""

    def latest(self, came_ns: Vector) -> Vector:
        """For each behaviour, when the last of its group came."""
        result: Vector = np.maximum.reduceat(came_ns[self.order], self.starts)[self.group]
        return result


class Move(NamedTuple):
    """What tasks that are alike do as collectives."""

    collective: Collective
    alone_ns: Vector
    """Time of each behaviour alone."""
    longest_ns: int
    members: Members | None
    """None where each behaviour is a group of its own."""


class Stretch(NamedTuple):
    """Tasks of one stream of which only the first waits for others: a collective alone, or kernels."""

    first: int
    stop: int
    segment: int
    """The host's, in which they are issued."""
    deps: tuple[tuple[int, int], ...]
    """What the first waits for beside its own stream: number of the stream, position."""
    move: Move | None


class Ready:
    """A program for *behaviours*, cut into the host's segments and the streams' stretches."""

    def __init__(self, program: Sequence[Task], behaviours: int) -> None:
        self.program = program
        self.behaviours = behaviours
        self.segments = _segments(program)
        """Between tasks that block the host: (first, one past the last)."""
        self.stream_of, self.streams = _streams(program, self.segments)
        """Number of each task's stream, and the stretches of each stream."""
        self.segment = np.repeat(np.arange(len(self.segments)), [stop - first for first, stop in self.segments])
        """The host's of each task."""
        host_ns = np.cumsum([0, *(task.host_ns for task in program)])
        self.cost_ns = host_ns[1:] - host_ns[[first for first, _ in self.segments]][self.segment]
        """What it takes the host from the beginning of its segment until it has issued each task."""
        took = [task.duration_ns if task.collective is None else 0 for task in program]
        self._alike_ns = np.array([ns if isinstance(ns, int) else 0 for ns in took], np.int64)
        self._unlike_ns = [(number, ns) for number, ns in enumerate(took) if not isinstance(ns, int)]

    def recording(self) -> Recording:
        """With all times zero, to be filled in."""
        moves = np.array([task.collective is not None for task in self.program], bool)
        row = np.where(moves, np.cumsum(moves) - 1, -1)
        clock, start, end, met = (
            np.zeros((rows, self.behaviours), np.int64)
            for rows in (len(self.segments), len(row), len(row), int(moves.sum()))
        )
        return Recording(clock, self.segment, self.cost_ns, start, end, row, met)

    def work_ns(self, longer_ns: Vector | None) -> Vector:
        """Time of all kernels before each task, a row a task and a last one for all of them, if they take *longer_ns*
        than they say.
        """
        result = np.zeros((len(self.program) + 1, self.behaviours), np.int64)
        result[1:] = self._alike_ns[:, None]
        for number, took in self._unlike_ns:
            result[number + 1] = took
        if longer_ns is not None:
            result[1:] += longer_ns
        return np.cumsum(result, axis=0, out=result)


def _segments(program: Sequence[Task]) -> list[tuple[int, int]]:
    """Cut the program after each task that blocks the host."""
    cuts = [i + 1 for i, task in enumerate(program) if task.blocks_host]
    if not cuts or cuts[-1] != len(program):
        cuts.append(len(program))
    return list(zip([0, *cuts[:-1]], cuts, strict=True)) if program else []


def _streams(program: Sequence[Task], segments: Sequence[tuple[int, int]]) -> tuple[list[int], list[list[Stretch]]]:
    """A kernel that waits for nothing but its stream goes with the one issued before it, if the host does not wait."""
    numbers = {stream: number for number, stream in enumerate(dict.fromkeys(task.stream for task in program))}
    stream_of = [numbers[task.stream] for task in program]
    streams: list[list[Stretch]] = [[] for _ in numbers]
    moves = _Moves()
    for segment, (begin, end) in enumerate(segments):
        first, before = begin, -1
        waits: tuple[tuple[int, int], ...] = ()
        move: Move | None = None
        for i in range(begin, end):
            task, stream = program[i], stream_of[i]
            deps = (
                tuple((stream_of[dep], dep) for dep in task.deps if stream_of[dep] != stream or dep >= i)
                if task.deps
                else ()
            )
            if stream == before and not deps and move is None and task.collective is None:
                continue
            if i > begin:
                streams[before].append(Stretch(first, i, segment, waits, move))
            first, waits, move, before = i, deps, moves.of(task), stream
        streams[before].append(Stretch(first, end, segment, waits, move))
    return stream_of, streams


class _Moves:
    """What has been found of collectives: most tasks share theirs with others."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Task, Move]] = {}

    def of(self, task: Task) -> Move | None:
        collective = task.collective
        if collective is None:
            return None
        key = id(collective), id(task.duration_ns)
        if key not in self._known:
            alone_ns = np.broadcast_to(np.asarray(task.duration_ns, np.int64), collective.groups.shape)
            # The task is kept, so that nothing else can be given the identity of what it has.
            self._known[key] = task, Move(collective, alone_ns, int(alone_ns.max()), _members(collective.groups))
        return self._known[key][1]


def _members(groups: Vector) -> Members | None:
    order = np.argsort(groups, kind="stable")
    found, starts, group = np.unique(groups[order], return_index=True, return_inverse=True)
    if len(found) == len(groups):
        return None
    return Members(order, starts, group[np.argsort(order)])
