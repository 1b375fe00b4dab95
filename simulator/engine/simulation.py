"""The simulation: classes of ranks run one program on streams, with SimPy for the order of things.

A SimPy process stands for one stream of one class of ranks; per-rank differences are vectors inside it, a barrier is a
maximum. A class advances on the clock of its slowest rank: that clock decides which transfers compete for links, while
every rank keeps its own exact times. Wrong where ranks of one class drift apart by more than a whole transfer: then
the competition is placed at the slowest rank's moment for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import simpy

from simulator.engine.links import Links
from simulator.engine.task import Task, Vector


@dataclass(frozen=True, slots=True)
class Recording:
    """What happened: times in ns, rows are tasks in program order, columns behaviours."""

    issue_ns: Vector
    """When the host had issued the task."""
    start_ns: Vector
    """When its stream took it up; a collective's member then waits for the others."""
    begin_ns: Vector
    """When work began: for a collective, when the last member of the group had come."""
    end_ns: Vector
    events: int
    """Events that SimPy processed."""

    @property
    def step_ns(self) -> int:
        """When the last task of the slowest rank ended."""
        return int(self.end_ns.max(initial=0))


class _CountingEnvironment(simpy.Environment):
    """A SimPy environment that counts its events."""

    events = 0

    def step(self) -> None:
        self.events += 1
        super().step()


@dataclass(slots=True)
class _Wave:
    """A collective on its way: the classes that have come, and the event of its end."""

    missing: int
    done: simpy.Event = field(repr=False)


class _Class:
    """Ranks that go through the program together: a slice of the behaviours."""

    def __init__(self, members: Vector, segments: int, env: simpy.Environment) -> None:
        self.members = members
        self.released = [env.event() for _ in range(segments)]
        self.finished: dict[int, simpy.Event] = {}
        self.done: set[int] = set()


class Simulation:
    """One run of a program.

    *classes* partitions the behaviours: one class with all of them is the folded run; one class per rank runs every
    rank apart. Both give the same times to the nanosecond. *progress* hears the share of tasks done, 0 to 1.
    """

    def __init__(
        self,
        program: Sequence[Task],
        behaviours: int,
        *,
        apart: bool = False,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self._env = _CountingEnvironment()
        self._links = Links(self._env)
        self._program = program
        self._progress = progress
        self._segments = _segments(program)
        parts = [np.array([i]) for i in range(behaviours)] if apart else [np.arange(behaviours)]
        self._classes = [_Class(part, len(self._segments), self._env) for part in parts]
        self._times = {
            name: np.zeros((len(program), behaviours), np.int64) for name in ("issue", "start", "begin", "end")
        }
        self._waves: dict[int, _Wave] = {}
        self._reported = 0

    def run(self) -> Recording:
        """Run to the end. Raise :exc:`RuntimeError` naming the first task that never ran, if the program deadlocks."""
        streams: dict[str, list[int]] = {}
        for i, task in enumerate(self._program):
            streams.setdefault(task.stream, []).append(i)
        for klass in self._classes:
            self._env.process(self._host(klass))
            for positions in streams.values():
                self._env.process(self._stream(klass, positions))
        self._env.run()
        for klass in self._classes:
            if len(klass.done) < len(self._program):
                first = min(set(range(len(self._program))) - klass.done)
                raise RuntimeError(f"deadlock: task {first}, {self._program[first].name!r}, never ran")
        t = self._times
        return Recording(t["issue"], t["start"], t["begin"], t["end"], self._env.events)

    def _host(self, klass: _Class) -> simpy.events.ProcessGenerator:
        """Issue tasks in order; run ahead of the streams until a task blocks the host."""
        clock = np.zeros(len(klass.members), np.int64)
        for number, (first, last) in enumerate(self._segments):
            costs = np.cumsum([self._program[i].host_ns for i in range(first, last)])
            self._times["issue"][first:last, klass.members] = clock + costs[:, None]
            klass.released[number].succeed()
            clock = clock + costs[-1]
            if self._program[last - 1].blocks_host:
                yield from self._await(klass, last - 1)
                clock = np.maximum(clock, self._times["end"][last - 1, klass.members])

    def _stream(self, klass: _Class, positions: list[int]) -> simpy.events.ProcessGenerator:
        """Run the tasks of one stream, one after the other."""
        members, times = klass.members, self._times
        free = np.zeros(len(members), np.int64)
        segment = 0
        for i in positions:
            task = self._program[i]
            while self._segments[segment][1] <= i:
                segment += 1
            if not klass.released[segment].triggered:
                yield klass.released[segment]
            for dep in task.deps:
                if dep not in klass.done:
                    yield from self._await(klass, dep)
            start = np.maximum(free, times["issue"][i, members])
            for dep in task.deps:
                np.maximum(start, times["end"][dep, members], out=start)
            times["start"][i, members] = start
            if task.collective is None:
                duration = task.duration_ns if isinstance(task.duration_ns, int) else task.duration_ns[members]
                times["begin"][i, members] = start
                times["end"][i, members] = start + duration
            else:
                yield self._env.timeout(max(0, int(start.max()) - self._env.now))
                yield self._join(i, task)
            free = times["end"][i, members]
            self._finish(klass, i)

    def _join(self, i: int, task: Task) -> simpy.Event:
        """Come to a collective; the last class to come starts the transfer."""
        wave = self._waves.get(i)
        if wave is None:
            wave = self._waves[i] = _Wave(len(self._classes), self._env.event())
        wave.missing -= 1
        if wave.missing == 0:
            self._env.process(self._transfer(i, task, wave))
        return wave.done

    def _transfer(self, i: int, task: Task, wave: _Wave) -> simpy.events.ProcessGenerator:
        """Move the wave's bytes: each group starts with its last member, competition stretches all alike."""
        assert task.collective is not None
        groups = task.collective.groups
        latest = np.zeros(int(groups.max()) + 1, np.int64)
        np.maximum.at(latest, groups, self._times["start"][i])
        begin = latest[groups]
        alone = np.broadcast_to(np.asarray(task.duration_ns, np.int64), begin.shape)
        longest = int(alone.max())
        since = self._env.now
        yield self._links.transfer(longest, task.collective.link_busy_ns)
        stretch = (self._env.now - since) - longest
        self._times["begin"][i] = begin
        delay = np.rint(alone * (stretch / longest)).astype(np.int64) if stretch else 0
        self._times["end"][i] = begin + alone + delay
        del self._waves[i]
        wave.done.succeed()

    def _await(self, klass: _Class, i: int) -> simpy.events.ProcessGenerator:
        if i not in klass.done:
            event = klass.finished.get(i)
            if event is None:
                event = klass.finished[i] = self._env.event()
            yield event

    def _finish(self, klass: _Class, i: int) -> None:
        klass.done.add(i)
        event = klass.finished.pop(i, None)
        if event is not None:
            event.succeed()
        if self._progress is not None:
            self._reported += 1
            if self._reported % 512 == 0:
                self._progress(self._reported / (len(self._program) * len(self._classes)))


def _segments(program: Sequence[Task]) -> list[tuple[int, int]]:
    """Cut the program after each task that blocks the host: (first, one past the last) of each stretch."""
    cuts = [i + 1 for i, task in enumerate(program) if task.blocks_host]
    if not cuts or cuts[-1] != len(program):
        cuts.append(len(program))
    return list(zip([0, *cuts[:-1]], cuts, strict=True)) if program else []
