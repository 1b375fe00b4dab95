"""The simulation: classes of ranks run their programs on streams, with SimPy for the order of things.

A part is a set of ranks with one program: the whole job, or a pipeline stage. A SimPy process stands for one stream of
one class of ranks; per-rank differences are vectors inside it, a barrier is a maximum. A class advances on the clock of
its slowest rank: that clock decides which transfers compete for links, while every rank keeps its own exact times.
Wrong where ranks of one class drift apart by more than a whole transfer: then the competition is placed at the slowest
rank's moment for all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import simpy
from simpy.core import EmptySchedule

from simulator.engine.links import Links
from simulator.engine.ready import Move, Ready
from simulator.engine.recording import Recording
from simulator.engine.task import Task, Vector

Progress = Callable[[float], None]
TELL_EVERY = 512
"""Tasks between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Part:
    """Ranks that run one program."""

    program: Sequence[Task]
    behaviours: int
    """Distinct behaviours among its ranks: the length of the vectors in its tasks."""


class Simulation:
    """All parts, made ready to run once or several times.

    Every part's behaviours go together as one class, or, *apart*, each as a class of its own. Both give the same times
    to the nanosecond.
    """

    def __init__(self, *parts: Part, apart: bool = False) -> None:
        self._parts = [Ready(part.program, part.behaviours) for part in parts]
        self._apart = apart
        self.events = 0
        """Events that SimPy processed in all runs."""

    def run(self, longer_ns: Sequence[Vector | None] = (), progress: Progress | None = None) -> tuple[Recording, ...]:
        """Run to the end; a recording for each part. *longer_ns*: for each part, what tasks take longer than they say,
        a row a task and a column a behaviour. *progress* hears the share of tasks done, 0 to 1.

        Raise :exc:`RuntimeError` naming the first task that never ran, if the programs wait for each other for ever.
        """
        longer_ns = longer_ns or [None] * len(self._parts)
        work = [part.work_ns(longer) for part, longer in zip(self._parts, longer_ns, strict=True)]
        run = _Run(self._parts, work, progress, apart=self._apart)
        self.events += run.to_the_end()
        return tuple(run.times)


@dataclass(slots=True)
class _Wave:
    """A collective on its way: the tasks that take part, how many classes are still to come, the event of its end."""

    missing: int
    done: simpy.Event = field(repr=False)
    sides: dict[int, tuple[int, Move]] = field(default_factory=dict)
    """Position of the task in each part that has come, and what it does."""


class _Class:
    """Ranks that go through the program of *part* together: a slice of its behaviours, and their share of its *times*
    and of its *work_ns*.
    """

    def __init__(self, part: int, ready: Ready, members: slice, times: Recording, work_ns: Vector) -> None:
        self.part = part
        self.ready = ready
        self.size = int(members.stop - members.start)
        """Number of its behaviours."""
        self.clock_ns, self.start_ns, self.end_ns = (
            values[:, members] for values in (times.clock_ns, times.start_ns, times.end_ns)
        )
        self.work_ns = work_ns[:, members]
        self.issued = 0
        """Segments that the host has issued."""
        self.released: dict[int, simpy.Event] = {}
        """By segment, for streams that wait for it."""
        self.reached = [0] * len(ready.streams)
        """One past the last task that each stream has finished."""
        self.awaited: list[dict[int, simpy.Event]] = [{} for _ in ready.streams]
        """By position, for what waits for a task of each stream."""

    def never_ran(self) -> int | None:
        """The first task that has not run."""
        left = [
            stretch.first
            for reached, stretches in zip(self.reached, self.ready.streams, strict=True)
            for stretch in stretches
            if stretch.first >= reached
        ]
        return min(left, default=None)


class _Run:
    """One run of all parts."""

    def __init__(
        self, parts: Sequence[Ready], work: Sequence[Vector], progress: Progress | None, *, apart: bool
    ) -> None:
        self._parts = parts
        self.times = [part.recording() for part in parts]
        self._env = simpy.Environment()
        self._links = [Links(self._env) for _ in parts]
        """Parts run on cards of their own, so on links of their own."""
        self._progress = progress
        self._waves: dict[Hashable, _Wave] = {}
        self._reported = 0
        self._classes = [
            [_Class(p, part, members, self.times[p], work[p]) for members in _members(part, apart=apart)]
            for p, part in enumerate(parts)
        ]
        self._total = sum(len(part.program) * len(self._classes[p]) for p, part in enumerate(parts))

    def to_the_end(self) -> int:
        """Run. Returns how many events there were."""
        classes = [klass for of_part in self._classes for klass in of_part]
        for klass in classes:
            self._env.process(self._host(klass))
            for number in range(len(klass.ready.streams)):
                self._env.process(self._stream(klass, number))
        events = 0
        with suppress(EmptySchedule):
            while True:
                self._env.step()
                events += 1
        for klass in classes:
            first = klass.never_ran()
            if first is not None:
                raise RuntimeError(f"deadlock: task {first}, {klass.ready.program[first].name!r}, never ran")
        return events

    def _host(self, klass: _Class) -> simpy.events.ProcessGenerator:
        """Issue tasks in order; run ahead of the streams until a task blocks the host."""
        ready, clock = klass.ready, np.zeros(klass.size, np.int64)
        for number, (_, stop) in enumerate(ready.segments):
            klass.clock_ns[number] = clock
            klass.issued = number + 1
            if number in klass.released:
                klass.released.pop(number).succeed()
            clock = clock + ready.cost_ns[stop - 1]
            if ready.program[stop - 1].blocks_host:
                stream = ready.stream_of[stop - 1]
                if klass.reached[stream] < stop:
                    yield klass.awaited[stream].setdefault(stop - 1, self._env.event())
                clock = np.maximum(clock, klass.end_ns[stop - 1])

    def _stream(self, klass: _Class, number: int) -> simpy.events.ProcessGenerator:
        """Run the tasks of the stream of that *number*, one after the other."""
        env, end_ns, reached, awaited = self._env, klass.end_ns, klass.reached, klass.awaited
        cost_ns, free = klass.ready.cost_ns, np.zeros(klass.size, np.int64)
        for first, stop, segment, deps, move in klass.ready.streams[number]:
            if klass.issued <= segment:
                yield klass.released.setdefault(segment, env.event())
            for stream, dep in deps:
                if reached[stream] <= dep:
                    yield awaited[stream].setdefault(dep, env.event())
                free = np.maximum(free, end_ns[dep])
            if move is None:
                self._work(klass, first, stop, klass.clock_ns[segment], free)
            else:
                issue_ns = klass.clock_ns[segment] + cost_ns[first]
                start = np.maximum(free, issue_ns, out=klass.start_ns[first])
                ahead = start.item(start.argmax()) - env.now
                if ahead > 0:
                    yield env.timeout(ahead)
                yield self._join(klass.part, first, move)
            free = end_ns[stop - 1]
            reached[number] = stop
            for position in [p for p in awaited[number] if p < stop]:
                awaited[number].pop(position).succeed()
            if self._progress is not None:
                self._report(self._progress, stop - first)

    def _work(self, klass: _Class, first: int, stop: int, clock_ns: Vector, free: Vector) -> None:
        """Note when the kernels from *first* to before *stop* run, which wait for nothing but each other and the host,
        who began with their segment at *clock_ns*, on a stream that is free at *free*.

        With C the time of all before it, a kernel starts at C + max(issue - C) over all up to itself.
        """
        work_ns = klass.work_ns
        before = work_ns[first:stop]
        ready = klass.ready.cost_ns[first:stop, None] - before
        ready += clock_ns
        np.maximum(ready[0], free - before[0], out=ready[0])
        np.maximum.accumulate(ready, axis=0, out=ready)
        np.add(ready, before, out=klass.start_ns[first:stop])
        np.add(ready, work_ns[first + 1 : stop + 1], out=klass.end_ns[first:stop])

    def _join(self, part: int, first: int, move: Move) -> simpy.Event:
        """Come to a collective; the last class to come starts the transfer."""
        key: Hashable = move.collective.meeting or (part, first)
        wave = self._waves.get(key)
        if wave is None:
            parts = move.collective.parts or (part,)
            wave = self._waves[key] = _Wave(sum(len(self._classes[p]) for p in parts), self._env.event())
        wave.sides[part] = first, move
        wave.missing -= 1
        if wave.missing == 0:
            del self._waves[key]
            self._set_off(wave)
        return wave.done

    def _set_off(self, wave: _Wave) -> None:
        """Move the wave's bytes: each group starts with its last member, competition stretches all alike."""
        owner, *others = sorted(wave.sides)
        first, move = wave.sides[owner]
        came, alone, longest, since = self.times[owner].start_ns[first], move.alone_ns, move.longest_ns, self._env.now
        for part in others:
            i, other = wave.sides[part]
            came, alone = np.maximum(came, self.times[part].start_ns[i]), np.maximum(alone, other.alone_ns)
            longest = max(longest, other.longest_ns)
        begin = came if move.members is None else move.members.latest(came)

        def land(_done: simpy.Event) -> None:
            end, more = begin + alone, self._env.now - since - longest
            if more:
                end += np.rint(alone * (more / longest)).astype(np.int64)
            for part, (i, _) in wave.sides.items():
                times = self.times[part]
                times.met_ns[times.row[i]] = begin
                times.end_ns[i] = end

        # Whoever waits for the end looks at these times. What two parts exchange is on the earlier one's links.
        wave.done.callbacks.insert(0, land)
        self._links[owner].transfer(longest, move.collective.link_busy_ns, wave.done)

    def _report(self, progress: Progress, tasks: int) -> None:
        """So many *tasks* more are done."""
        before, self._reported = self._reported, self._reported + tasks
        if self._reported // TELL_EVERY > before // TELL_EVERY:
            progress(self._reported / self._total)


def _members(part: Ready, *, apart: bool) -> list[slice]:
    """The behaviours of each class."""
    return [slice(i, i + 1) for i in range(part.behaviours)] if apart else [slice(0, part.behaviours)]
