"""The emitter: writes a program down, task after task, in the order in which the host issues them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from simulator.engine.task import Allocation, Quantity, Task
from simulator.program.costs import Priced
from simulator.program.framework_host import FrameworkHost
from simulator.program.network import Transfer

COMPUTE = "compute"


class Emitter:
    """Tasks so far, and what the next ones belong to.

    Kernels are priced for a sound accelerator; *pace* is the share of that at which each behaviour's runs them.
    *captured*: all passes are one CUDA graph, which the host launches and waits for no part of. *framework*: what its
    Python takes between launches.
    """

    def __init__(
        self,
        launch_ns: int,
        looped_launch_ns: int = 0,
        pace: npt.NDArray[np.float64] | None = None,
        *,
        captured: bool = False,
        framework: FrameworkHost | None = None,
    ) -> None:
        self.framework = framework or FrameworkHost()
        self.tasks: list[Task] = []
        self.phase = "forward"
        self.layer = -1
        self.micro_batch = -1
        self._launch_ns = launch_ns
        self._looped_launch_ns = looped_launch_ns
        self._pace = pace
        self._captured = captured
        self._launched = False
        self._python_ns = 0
        self._awaited: tuple[int, ...] = ()
        self._held: dict[str, None] = {}

    @property
    def last(self) -> int:
        """Position of the task written last."""
        return len(self.tasks) - 1

    @property
    def computed(self) -> tuple[int, ...]:
        """What a stream waits for that catches up with compute: its last task, and what the next one will wait for."""
        last = next((n for n in range(self.last, -1, -1) if self.tasks[n].stream == COMPUTE), None)
        return self._awaited if last is None else (last, *self._awaited)

    @contextmanager
    def at(self, *, phase: str, layer: int = -1) -> Iterator[None]:
        """Write what follows as part of *phase* and *layer*."""
        before = self.phase, self.layer
        self.phase, self.layer = phase, layer
        yield
        self.phase, self.layer = before

    def compute(
        self, name: str, kind: str, priced: Priced, *, allocates: Iterable[Allocation] = (), host_ns: int | None = None
    ) -> int:
        """A stretch of kernels on the compute stream; it waits for what was awaited since the last one.

        *host_ns* is the host's time where it is not that of the launches.
        """
        deps, self._awaited = self._awaited, ()
        return self._write(
            Task(
                name,
                COMPUTE,
                kind,
                priced.duration_ns if self._pace is None else np.ceil(priced.duration_ns / self._pace).astype(np.int64),
                deps=deps,
                host_ns=self._host_ns(priced) if host_ns is None else host_ns,
                grade=priced.grade,
            ),
            allocates,
        )

    def transfer(
        self,
        name: str,
        stream: str,
        kind: str,
        transfer: Transfer,
        *,
        deps: tuple[int, ...],
        allocates: Iterable[Allocation] = (),
        launches: int = 1,
    ) -> int:
        """A collective, or copies, on its own stream."""
        task = Task(
            name,
            stream,
            kind,
            transfer.duration_ns,
            deps=deps,
            host_ns=self._in_graph_ns() if self._in_graph else launches * self._launch_ns,
            collective=transfer.collective,
            grade=transfer.grade,
            algorithms=transfer.algorithms,
        )
        return self._write(task, allocates)

    def python(self, ns: int) -> None:
        """Have the host be busy for *ns* before it issues the next task, unless that is part of a graph."""
        self._python_ns += 0 if self._in_graph else ns

    def take(self, *allocations: Allocation) -> None:
        """Allocate with the task written last."""
        self._allocate(self.tasks[-1], allocations)

    def await_(self, position: int) -> None:
        """Make the next task of the compute stream wait for *position*."""
        self._awaited = (*self._awaited, position)

    def block_host(self) -> None:
        """Make the host wait for the task written last, unless that is part of a graph."""
        self.tasks[-1].blocks_host = not self._in_graph

    def release(self, *keys: str, at: int | None = None) -> None:
        """Release *keys* when the task written last, or the one *at* a position, is done."""
        task = self.tasks[-1 if at is None else at]
        task.releases += keys
        for key in keys:
            del self._held[key]

    def release_held(self, keys: Iterable[str]) -> None:
        """Release those of *keys* that are allocated when the task written last is done."""
        held = self._held
        if found := [key for key in keys if key in held]:
            self.release(*found)

    @property
    def awaited(self) -> tuple[int, ...]:
        """What the next task of the compute stream will wait for."""
        return self._awaited

    def awaits(self, stream: str) -> bool:
        """Whether the next task of the compute stream will wait for one of *stream*."""
        return any(self.tasks[position].stream == stream for position in self._awaited)

    def wait_instead(self) -> tuple[int, ...]:
        """What the next task of the compute stream would wait for: now another task that it waits for does."""
        awaited, self._awaited = self._awaited, ()
        return awaited

    def reorder(self, first: int, positions: Sequence[int]) -> dict[int, int]:
        """Put the tasks from *first* on in the order of *positions*. Returns where each is now."""
        new = {position: first + place for place, position in enumerate(positions)}
        moved = [self.tasks[position] for position in positions]
        for task in moved:
            task.deps = tuple(new.get(dep, dep) for dep in task.deps)
        self.tasks[first:] = moved
        self._awaited = tuple(new.get(dep, dep) for dep in self._awaited)
        return new

    def holds(self, key: str) -> bool:
        """Whether *key* is allocated."""
        return key in self._held

    @property
    def _in_graph(self) -> bool:
        """Whether what is written is part of a graph: the update is not."""
        return self._captured and self.phase != "optimizer"

    def _host_ns(self, priced: Priced) -> int:
        if self._in_graph:
            return self._in_graph_ns()
        return priced.launches * self._launch_ns + priced.looped * self._looped_launch_ns

    def _in_graph_ns(self) -> int:
        """The graph's launch, with the first of its tasks."""
        launched, self._launched = self._launched, True
        return 0 if launched else self._launch_ns

    def _write(self, task: Task, allocates: Iterable[Allocation]) -> int:
        task.phase, task.layer, task.micro_batch = self.phase, self.layer, self.micro_batch
        task.host_ns, self._python_ns = task.host_ns + self._python_ns, 0
        self.tasks.append(task)
        self._allocate(task, allocates)
        return len(self.tasks) - 1

    def _allocate(self, task: Task, allocates: Iterable[Allocation]) -> None:
        taken = [a for a in allocates if isinstance(a.bytes, np.ndarray) or a.bytes > 0]
        if taken:
            task.allocates = (*task.allocates, *taken)
            for allocated in taken:
                self._held[allocated.key] = None


def allocation(key: str, kind: str, size: Quantity, *, pool: str = COMPUTE) -> Allocation:
    """Device memory of *size* bytes for one tensor, from the memory of one stream."""
    return Allocation(key, kind, size, pool=pool)


def tensors(key: str, kind: str, pieces: Iterable[Quantity], *, pool: str = COMPUTE) -> Allocation:
    """Device memory for several tensors, which are freed together."""
    sizes = tuple(pieces)
    return Allocation(key, kind, sum(sizes), pieces=sizes if len(sizes) > 1 else (), pool=pool)
