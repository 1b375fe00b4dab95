"""An iteration of which parts come up from below the card: copies and reads beside layers, in the engine.

A layer's weights and cache come in so many layers ahead, once a buffer is free: the layer that used it has been
computed. The first layers of the next iteration come in beside the last ones of this one, so that of two iterations in
a row the second is what one takes. What a router chooses comes in when it has chosen, and the host waits for that
choice; what cores compute of a layer's experts they compute beside what the card does of it, and the next layer waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.engine.simulation import Part, Simulation
from simulator.engine.task import Task
from simulator.program.drives import DRIVE_READ
from simulator.program.emitter import COMPUTE
from simulator.program.host_memory import COPY_IN, COPY_OUT, CORES
from simulator.program.host_shards import READ_BUFFERS
from simulator.program.network import Transfer
from simulator.program.serving.below import NOTHING_BELOW, Below
from simulator.program.serving.iteration import Parts
from simulator.program.serving.timing import Step, in_order

_ITERATIONS = 2


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of one iteration, or what comes before or behind the layers."""

    steps: Sequence[Step]
    below: Below = NOTHING_BELOW

    @property
    def experts_at(self) -> int:
        """The step before which routers have chosen."""
        return next((at for at, step in enumerate(self.steps) if step.part == "experts_s"), len(self.steps))


def streamed(layers: Sequence[Layer], buffers: int, launch_s: float) -> tuple[Parts, Step]:
    """Parts of an iteration through *layers*, with room on the card for what comes in for so many (*buffers*).

    What copies, drives and cores take beyond the card's own time is theirs, told as a step besides: it is known as well
    as that of them which takes most time in all.
    """
    program = _Program(layers, buffers, launch_s)
    ends = [program.write() for _ in range(_ITERATIONS)]
    (recording,) = Simulation(Part(program.tasks, 1)).run()
    first_ns, last_ns = (int(recording.end_ns[end, 0]) for end in ends)
    alone = in_order([step for layer in layers for step in layer.steps], launch_s)
    waited_s = max(0.0, (last_ns - first_ns) / 1e9 - alone.total_s)
    return alone + Parts(host_s=waited_s), Step("host_s", waited_s, _grade(program.tasks))


def _grade(tasks: Sequence[Task]) -> str:
    """Of what moves or computes outside the card."""
    busy = Counter[str]()
    for task in tasks:
        if task.stream != COMPUTE:
            busy[task.grade] += int(np.max(task.duration_ns))
    return max(busy, key=lambda grade: busy[grade], default="measured")


@dataclass(slots=True)
class _Program:
    """Tasks of iterations in a row."""

    layers: Sequence[Layer]
    buffers: int
    launch_s: float
    tasks: list[Task] = field(default_factory=list)
    _awaited: tuple[int, ...] = ()
    """What the next kernels wait for."""
    _came: list[int] = field(default_factory=list)
    """Of each layer that something came in for, where its last copy is."""
    _used: list[int] = field(default_factory=list)
    """And where it was computed last."""
    _copied: list[int] = field(default_factory=list)
    """Copies out of the buffers in host memory that drives are read into."""

    def write(self) -> int:
        """One iteration; returns the position of its last kernels."""
        filled = [layer for layer in self.layers if _ahead(layer.below)]
        for number in range(self.buffers - 1 if filled and not self._came else 0):
            self._bring(filled[number % len(filled)].below)
        done = len(self._used)
        for layer in self.layers:
            arrives = _ahead(layer.below)
            if arrives:
                place = len(self._used) - done
                self._bring(filled[(place + self.buffers - 1) % len(filled)].below)
                self._awaited = (*self._awaited, self._came[len(self._used)])
            self._compute(layer)
            if arrives:
                self._used.append(len(self.tasks) - 1)
            if layer.below.written is not None:
                self._move("cache out", COPY_OUT, layer.below.written, (len(self.tasks) - 1,))
        return max(at for at, task in enumerate(self.tasks) if task.stream == COMPUTE)

    def _bring(self, below: Below) -> None:
        """What a layer needs ahead, when a buffer is free and the one in host memory."""
        free = len(self._came) - self.buffers
        deps = (self._used[free],) if free >= 0 else ()
        last = len(self.tasks) - 1
        if below.read is not None:
            staged = tuple(self._copied[-READ_BUFFERS:][:1]) if len(self._copied) >= READ_BUFFERS else ()
            last = self._move("read", DRIVE_READ, below.read, deps if below.weights is None else staged)
        if below.weights is not None:
            deps = deps if below.read is None else (*deps, last)
            last = self._move("weights in", COPY_IN, below.weights, deps)
            if below.read is not None:
                self._copied.append(last)
        if below.cache is not None:
            last = self._move("cache in", COPY_IN, below.cache, deps)
        self._came.append(last)

    def _compute(self, layer: Layer) -> None:
        at, below = layer.experts_at, layer.below
        if below.chosen is None and below.cores is None:
            self._kernels(layer.steps)
            return
        position = self._kernels(layer.steps[:at])
        if below.chosen is not None:
            self.tasks[position].blocks_host = True
            self._awaited = (self._move("experts in", COPY_IN, below.chosen, (position,)),)
        if below.cores is not None:
            out, work, back = below.cores
            sent = self._move("states out", COPY_OUT, out, (position,))
            worked = self._move("experts on cores", CORES, work, (sent,))
            came = self._move("sums in", COPY_IN, back, (worked,))
            self._kernels(layer.steps[at:])
            self._awaited = (came,)
            return
        self._kernels(layer.steps[at:])

    def _kernels(self, steps: Sequence[Step]) -> int:
        seconds = sum(step.seconds for step in steps)
        host_ns = round(sum(step.launches for step in steps) * self.launch_s * 1e9)
        waited = any(step.waited_for for step in steps)
        deps, self._awaited = self._awaited, ()
        task = Task("kernels", COMPUTE, "kernel", round(seconds * 1e9), deps, host_ns, blocks_host=waited)
        self.tasks.append(task)
        return len(self.tasks) - 1

    def _move(self, name: str, stream: str, transfer: Transfer, deps: tuple[int, ...]) -> int:
        moves = Task(name, stream, stream, transfer.duration_ns, deps, collective=transfer.collective)
        moves.grade = transfer.grade
        self.tasks.append(moves)
        return len(self.tasks) - 1


def _ahead(below: Below) -> bool:
    """Whether anything comes in before the layer begins."""
    return below.read is not None or below.weights is not None or below.cache is not None
