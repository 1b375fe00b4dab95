"""The update of states that drives hold: sub-group after sub-group read, updated by the host's cores, and written.

As DeepSpeed's ZeRO-3 runs it (0.19 `stage3.py`, `step`; `pipelined_optimizer_swapper.py`): a sub-group is a run of
tensors, full once it has so many elements. Its master weights, both moments and gradients, 16 bytes an element, come to
pinned buffers, whose process scales (8), updates (28) and casts them (8) as where all of it is in host memory; the new
weights go to where the bf16 shards are; and the states, 12 bytes an element, back to the drives. Buffers are four for
each sub-group that is read, updated or written at a time, as large as the largest: a read ahead begins when its buffers
are written, the host waits for what it works on. Sub-groups without states on the drives are updated in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simulator.program.costs import Priced
from simulator.program.drives import DRIVE_READ, DRIVE_WRITE, Drives
from simulator.program.emitter import Emitter
from simulator.program.fsdp import COMPUTE_BYTES
from simulator.program.host_memory import CORES, DRIVES, HostMemory
from simulator.program.host_update import CAST_BYTES, FP32_BYTES, SCALE_BYTES, HostUpdate
from simulator.program.job import Job
from simulator.program.offload import OnDrives
from simulator.program.swap import taken
from simulator.program.update import Owned

STATES_BYTES = 3 * FP32_BYTES
"""Master weight and moments of an element."""
BUFFERS = 4
"""Of a sub-group: states and gradient."""


def sub_groups(tensors: Iterable[Owned], full_elements: float) -> list[float]:
    """Elements of each sub-group of *tensors*, in their order: one ends with the tensor that fills it."""
    found, held = [], 0.0
    for tensor in tensors:
        held += tensor.elements
        if held >= full_elements:
            found.append(held)
            held = 0.0
    return [*found, held] if held else found


def on_drives(groups: list[float], way: OnDrives) -> list[bool]:
    """Which of *groups* have their states on drives: a share of them, spread evenly."""
    return [taken(way.share, number) for number in range(len(groups))]


class DriveUpdate:
    """Writes the update of *tensors*, whose states are on *drives* as *way* says."""

    def __init__(
        self, job: Job, emitter: Emitter, host: HostMemory, drives: Drives, way: OnDrives, tensors: tuple[Owned, ...]
    ) -> None:
        self._job = job
        self._emitter = emitter
        self._host = host
        self._drives = drives
        self._way = way
        self._tensors = tensors
        self._written: list[int] = []
        """Positions of the writes so far."""
        self._read: list[int] = []

    def write(self) -> None:
        """Write the tasks."""
        groups = sub_groups(self._tensors, self._way.sub_group_elements)
        away = on_drives(groups, self._way)
        travelling = iter([size for size, far in zip(groups, away, strict=True) if far])
        self._read_next(travelling)
        for number, (elements, far) in enumerate(zip(groups, away, strict=True)):
            if far:
                self._begin(number, travelling)
            self._update(elements)
            if far:
                self._end(elements, number, travelling)
        self._wait("wait for writes", self._written[-1:])
        self._emitter.compute("synchronize", "synchronize", Priced(0, 0, "measured"))

    def _begin(self, number: int, travelling: Iterator[float]) -> None:
        """Wait for the sub-group, and for an earlier one to be written; then have the next one read."""
        done = len(self._written) - self._way.writes_behind
        self._wait(f"wait for sub-group {number}", [self._read[-1], *self._written[max(0, done - 1) : max(0, done)]])
        if self._way.reads_ahead:
            self._read_next(travelling)

    def _end(self, elements: float, number: int, travelling: Iterator[float]) -> None:
        size = elements * (STATES_BYTES + COMPUTE_BYTES * (self._job.offload.shards == "nvme"))
        moved, deps = self._drives.write(size), (self._emitter.last,)
        self._written.append(
            self._emitter.transfer(f"write sub-group {number}", DRIVE_WRITE, DRIVE_WRITE, moved, deps=deps)
        )
        if not self._way.reads_ahead:
            self._read_next(travelling)

    def _read_next(self, travelling: Iterator[float]) -> None:
        """Read the next sub-group into the buffers that are free first."""
        elements = next(travelling, None)
        if elements is None:
            return
        moved = self._drives.read(elements * (STATES_BYTES + FP32_BYTES))
        free = len(self._read) - self._way.buffered
        deps = tuple(self._written[free : free + 1]) if free >= 0 else self._gradients_written()
        self._read.append(
            self._emitter.transfer(f"read sub-group {len(self._read)}", DRIVE_READ, DRIVE_READ, moved, deps=deps)
        )

    def _gradients_written(self) -> tuple[int, ...]:
        """The last of the gradients' writes, before which nothing is read."""
        tasks = self._emitter.tasks
        return tuple(n for n in range(len(tasks) - 1, -1, -1) if tasks[n].stream == DRIVE_WRITE)[:1]

    def _update(self, elements: float) -> None:
        """A sub-group's update by the cores, and its new weights to the card, or to where its shards are."""
        job = self._job
        cores = HostUpdate(job, self._emitter, self._host, (Owned(elements, matrix=False),))
        cores.sweep("scale gradients on cpu", "cpu_pass", SCALE_BYTES, near=SCALE_BYTES)
        sweep_bytes = job.optimizer.sweep_bytes
        cores.sweep("cpu AdamW", "cpu_optimizer", sweep_bytes, near=sweep_bytes)
        cores.sweep("cast parameters on cpu", "cpu_pass", CAST_BYTES, near=FP32_BYTES)
        if job.offload.shards == "hbm":
            cores.parameters_in(COMPUTE_BYTES, copies=1, pinned=False)

    def _wait(self, name: str, positions: list[int]) -> None:
        """Have the host wait for what drives do at *positions*."""
        nothing = self._host.transfer("drive_wait", DRIVES, 0.0, 0.0, {}, "measured")
        position = self._emitter.transfer(name, CORES, "drive_wait", nothing, deps=tuple(positions), launches=0)
        self._emitter.block_host()
        self._emitter.await_(position)
