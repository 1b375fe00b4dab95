"""The simulation: classes of ranks run their programs on streams, with SimPy for the order of things.

A part is a set of ranks with one program: the whole job, or a pipeline stage. A SimPy process stands for one stream of
one class of ranks; per-rank differences are vectors inside it, a barrier is a maximum. A class advances on the clock of
its slowest rank: that clock decides which transfers compete for links, while every rank keeps its own exact times.
Wrong where ranks of one class drift apart by more than a whole transfer: then the competition is placed at the slowest
rank's moment for all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import simpy

from simulator.engine.links import Links
from simulator.engine.task import Task, Vector


@dataclass(frozen=True, slots=True)
class Part:
    """Ranks that run one program."""

    program: Sequence[Task]
    behaviours: int
    """Distinct behaviours among its ranks: the length of the vectors in its tasks."""
    longer_ns: Vector | None = None
    """What each task takes longer than it says, a row a task and a column a behaviour; none takes longer if absent."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What happened in one part: times in ns, rows are tasks in program order, columns behaviours."""

    issue_ns: Vector
    """When the host had issued the task."""
    start_ns: Vector
    """When its stream took it up; a collective's member then waits for the others."""
    begin_ns: Vector
    """When work began: for a collective, when the last member of the group had come."""
    end_ns: Vector

    @property
    def step_ns(self) -> int:
        """When the last task of the slowest rank ended."""
        return int(self.end_ns.max(initial=0))

    @classmethod
    def blank(cls, part: Part) -> Recording:
        """All times zero, to be filled in."""
        return cls(*(np.zeros((len(part.program), part.behaviours), np.int64) for _ in range(4)))


class _CountingEnvironment(simpy.Environment):
    """A SimPy environment that counts its events."""

    events = 0

    def step(self) -> None:
        self.events += 1
        super().step()


@dataclass(slots=True)
class _Wave:
    """A collective on its way: the tasks that take part, how many classes are still to come, the event of its end."""

    missing: int
    done: simpy.Event = field(repr=False)
    tasks: dict[int, int] = field(default_factory=dict)
    """Position of the task in each part that has come."""


class _Class:
    """Ranks that go through the program of *part* together: a slice of its behaviours."""

    def __init__(self, part: int, members: slice, segments: int, env: simpy.Environment) -> None:
        self.part = part
        self.members = members
        self.released = [env.event() for _ in range(segments)]
        self.finished: dict[int, simpy.Event] = {}
        self.done: set[int] = set()

    @property
    def size(self) -> int:
        """Number of its behaviours."""
        return int(self.members.stop - self.members.start)


class Simulation:
    """One run of all parts.

    Every part's behaviours go together as one class, or, *apart*, each as a class of its own. Both give the same times
    to the nanosecond. *progress* hears the share of tasks done, 0 to 1.
    """

    def __init__(self, *parts: Part, apart: bool = False, progress: Callable[[float], None] | None = None) -> None:
        self._env = _CountingEnvironment()
        self._links = Links(self._env)
        self._parts = parts
        self._progress = progress
        self._segments = [_segments(part.program) for part in parts]
        self._classes = [
            [_Class(p, members, len(self._segments[p]), self._env) for members in _members(part, apart=apart)]
            for p, part in enumerate(parts)
        ]
        self._times = [Recording.blank(part) for part in parts]
        self._waves: dict[Hashable, _Wave] = {}
        self._reported = 0
        self._total = sum(len(part.program) * len(self._classes[p]) for p, part in enumerate(parts))

    @property
    def events(self) -> int:
        """Events that SimPy processed."""
        return self._env.events

    def run(self) -> tuple[Recording, ...]:
        """Run to the end; a recording for each part.

        Raise :exc:`RuntimeError` naming the first task that never ran, if the programs wait for each other for ever.
        """
        for part, classes in zip(self._parts, self._classes, strict=True):
            streams = _stretches(part.program)
            for klass in classes:
                self._env.process(self._host(klass))
                for stretches in streams.values():
                    self._env.process(self._stream(klass, stretches))
        self._env.run()
        self._check_all_ran()
        return tuple(self._times)

    def _check_all_ran(self) -> None:
        for part, classes in zip(self._parts, self._classes, strict=True):
            for klass in classes:
                if len(klass.done) < len(part.program):
                    first = min(set(range(len(part.program))) - klass.done)
                    raise RuntimeError(f"deadlock: task {first}, {part.program[first].name!r}, never ran")

    def _host(self, klass: _Class) -> simpy.events.ProcessGenerator:
        """Issue tasks in order; run ahead of the streams until a task blocks the host."""
        program, times = self._parts[klass.part].program, self._times[klass.part]
        clock = np.zeros(klass.size, np.int64)
        for number, (first, last) in enumerate(self._segments[klass.part]):
            costs = np.cumsum([program[i].host_ns for i in range(first, last)])
            times.issue_ns[first:last, klass.members] = clock + costs[:, None]
            klass.released[number].succeed()
            clock = clock + costs[-1]
            if program[last - 1].blocks_host:
                yield from self._await(klass, last - 1)
                clock = np.maximum(clock, times.end_ns[last - 1, klass.members])

    def _stream(self, klass: _Class, stretches: list[range]) -> simpy.events.ProcessGenerator:
        """Run the tasks of one stream, one after the other."""
        program, times, members = self._parts[klass.part].program, self._times[klass.part], klass.members
        segments, segment = self._segments[klass.part], 0
        free = np.zeros(klass.size, np.int64)
        for stretch in stretches:
            first = stretch.start
            while segments[segment][1] <= first:
                segment += 1
            if not klass.released[segment].triggered:
                yield klass.released[segment]
            for dep in program[first].deps:
                if dep not in klass.done:
                    yield from self._await(klass, dep)
                free = np.maximum(free, times.end_ns[dep, members])
            if program[first].collective is None:
                self._work(klass, stretch, free)
            else:
                start = np.maximum(free, times.issue_ns[first, members])
                times.start_ns[first, members] = start
                yield self._env.timeout(max(0, int(start.max()) - self._env.now))
                yield self._join(klass.part, first, program[first])
            free = times.end_ns[stretch.stop - 1, members]
            self._finish(klass, stretch)

    def _work(self, klass: _Class, stretch: range, free: Vector) -> None:
        """Note when kernels run that wait for nothing but the host and each other, on a stream that is free at *free*.

        With C the time of those before it, a kernel starts at C + max(issue - C) over all up to itself.
        """
        part, times = self._parts[klass.part], self._times[klass.part]
        here = (slice(stretch.start, stretch.stop), klass.members)
        took = np.empty((len(stretch), klass.size), np.int64)
        for row, task in enumerate(part.program[stretch.start : stretch.stop]):
            took[row] = task.duration_ns if isinstance(task.duration_ns, int) else task.duration_ns[klass.members]
        if part.longer_ns is not None:
            took += part.longer_ns[here]
        before = np.cumsum(took, axis=0) - took
        ready = times.issue_ns[here] - before
        np.maximum(ready[0], free, out=ready[0])
        start = np.maximum.accumulate(ready, axis=0) + before
        times.start_ns[here] = times.begin_ns[here] = start
        np.add(start, took, out=times.end_ns[here])

    def _join(self, part: int, i: int, task: Task) -> simpy.Event:
        """Come to a collective; the last class to come starts the transfer."""
        assert task.collective is not None
        key: Hashable = task.collective.meeting or (part, i)
        wave = self._waves.get(key)
        if wave is None:
            wave = self._waves[key] = _Wave(self._classes_of(task, part), self._env.event())
        wave.tasks[part] = i
        wave.missing -= 1
        if wave.missing == 0:
            del self._waves[key]
            self._env.process(self._transfer(wave))
        return wave.done

    def _classes_of(self, task: Task, part: int) -> int:
        """How many classes take part in the collective of *task*."""
        assert task.collective is not None
        parts = task.collective.parts or (part,)
        return sum(len(self._classes[p]) for p in parts)

    def _transfer(self, wave: _Wave) -> simpy.events.ProcessGenerator:
        """Move the wave's bytes: each group starts with its last member, competition stretches all alike."""
        sides = [(self._times[part], i, self._parts[part].program[i]) for part, i in sorted(wave.tasks.items())]
        begin = _latest_of_groups([(times.start_ns[i], task) for times, i, task in sides])
        alone = np.zeros_like(begin)
        for _, _, task in sides:
            alone = np.maximum(alone, np.asarray(task.duration_ns, np.int64))
        longest, since = int(alone.max()), self._env.now
        collective = sides[0][2].collective
        assert collective is not None
        # Parts run on cards of their own, so on links of their own; what two parts exchange is the earlier one's.
        owner = min(wave.tasks)
        yield self._links.transfer(longest, {f"{link} {owner}": busy for link, busy in collective.link_busy_ns.items()})
        stretch = (self._env.now - since) - longest
        delay = np.rint(alone * (stretch / longest)).astype(np.int64) if stretch else 0
        for times, i, _ in sides:
            times.begin_ns[i] = begin
            times.end_ns[i] = begin + alone + delay
        wave.done.succeed()

    def _await(self, klass: _Class, i: int) -> simpy.events.ProcessGenerator:
        if i not in klass.done:
            event = klass.finished.get(i)
            if event is None:
                event = klass.finished[i] = self._env.event()
            yield event

    def _finish(self, klass: _Class, stretch: range) -> None:
        klass.done.update(stretch)
        for i in stretch if klass.finished else ():
            event = klass.finished.pop(i, None)
            if event is not None:
                event.succeed()
        if self._progress is not None:
            before, self._reported = self._reported, self._reported + len(stretch)
            if self._reported // 512 > before // 512:
                self._progress(self._reported / self._total)


def _stretches(program: Sequence[Task]) -> dict[str, list[range]]:
    """The tasks of each stream in stretches: a collective alone, or kernels of which only the first waits for others.

    A kernel that waits for nothing but its stream goes with the one issued before it, if the host does not wait.
    """
    streams: dict[str, list[range]] = {}
    for i, task in enumerate(program):
        stretches = streams.setdefault(task.stream, [])
        alone = task.collective is not None or any(program[dep].stream != task.stream for dep in task.deps)
        before = program[i - 1]
        if not i or alone or before.stream != task.stream or before.blocks_host or before.collective is not None:
            stretches.append(range(i, i + 1))
        else:
            stretches[-1] = range(stretches[-1].start, i + 1)
    return streams


def _members(part: Part, *, apart: bool) -> list[slice]:
    """The behaviours of each class."""
    return [slice(i, i + 1) for i in range(part.behaviours)] if apart else [slice(0, part.behaviours)]


def _latest_of_groups(sides: Sequence[tuple[Vector, Task]]) -> Vector:
    """When the last member of each behaviour's group has come, over all sides of the collective."""
    collective = sides[0][1].collective
    assert collective is not None
    latest = np.zeros(int(collective.groups.max()) + 1, np.int64)
    for start, task in sides:
        assert task.collective is not None
        np.maximum.at(latest, task.collective.groups, start)
    result: Vector = latest[collective.groups]
    return result


def _segments(program: Sequence[Task]) -> list[tuple[int, int]]:
    """Cut the program after each task that blocks the host: (first, one past the last) of each stretch."""
    cuts = [i + 1 for i, task in enumerate(program) if task.blocks_host]
    if not cuts or cuts[-1] != len(program):
        cuts.append(len(program))
    return list(zip([0, *cuts[:-1]], cuts, strict=True)) if program else []
