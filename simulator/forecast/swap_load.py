"""Whether a swap asks more of a link than a pass leaves it: then compute waits for copies, in every layer anew.

In a pass of a micro-batch the work of a layer takes its kernels and the exchanges that they wait for, one after the
other; copies are hidden as long as they and what else uses the same link take no longer:

    bytes a layer / rate of the link <= work of a layer - what exchanges and gathers of it use the link for

Means over the layers of a stage: a layer that sends more than the others may stall beside ones that send nothing. What
shares are hidden is a lower bound where less that is kept means more that runs again, and so more work to hide behind.
Where forward and backward passes are woven, copies of one have the kernels of both to hide behind, beside exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor

import numpy as np

from simulator.engine.task import Task
from simulator.program.activation_offload import SAVED
from simulator.program.emitter import COMPUTE
from simulator.program.fsdp import ALL_REDUCE, GATHER, REDUCE
from simulator.program.host_memory import COPY_IN, COPY_OUT, CORES, HOST_TIER
from simulator.program.swap import Swap
from simulator.program.weaving import EXCHANGES

_PASSES = {"forward": (("forward",), "leave"), "backward": (("recompute", "backward"), "come back")}
"""By name, the phases of a pass, and what tensors do in it."""
_BESIDE = frozenset({GATHER, REDUCE, ALL_REDUCE, COPY_IN, COPY_OUT, CORES})
"""Streams that compute does not wait for in each layer."""
_LINKS = {"host link": "both ways of the card's link", "host memory": "the node's memory"}


@dataclass(frozen=True, slots=True)
class Load:
    """What copies of a pass ask of the link that they fill first, for each layer in the mean."""

    name: str
    link: str
    layer_bytes: float
    copies_s: float
    work_s: float
    others_s: float
    """What everything else uses the link for."""

    @property
    def hidden(self) -> float:
        """Share of the copies that the pass leaves time for."""
        return max(0.0, self.work_s - self.others_s) / self.copies_s

    def told(self, swap: Swap) -> str:
        """The sentence that says so, with the shares of *swap* that would be hidden."""
        rate = self.layer_bytes / self.copies_s
        shares = ", ".join(f"{name} {floor(share * self.hidden * 100) / 100:g}" for name, share in swap.host.items())
        link = _LINKS.get(self.link, "the card's link")
        return (
            f"training.swap.operators: {self.layer_bytes / 1e6:.0f} MB a layer {_PASSES[self.name][1]} in the "
            f"{self.name} pass, {self.copies_s * 1e3:.2f} ms at {rate / 1e9:.1f} GB/s over {link}, of which its work "
            f"leaves {self.work_s * 1e3:.2f} - {self.others_s * 1e3:.2f} = {(self.work_s - self.others_s) * 1e3:.2f} "
            f"ms: compute waits for the rest; hidden: {shares}"
        )


def overloads(programs: Sequence[Sequence[Task]], swaps: Sequence[Swap], *, weaves: bool = False) -> list[str]:
    """What stages with *programs*, which may have woven passes, swap too much of in each pass of the first micro-batch:
    the worst of them.
    """
    worst: dict[str, tuple[Load, Swap]] = {}
    for program, swap in zip(programs, swaps, strict=True):
        for load in loads(program, weaves=weaves):
            if load.name not in worst or load.hidden < worst[load.name][0].hidden:
                worst[load.name] = load, swap
    return [load.told(swap) for load, swap in worst.values() if load.hidden < 1]


def loads(program: Sequence[Task], *, weaves: bool = False) -> Iterator[Load]:
    """Of each pass in which anything travels."""
    beside = _BESIDE | {EXCHANGES} if weaves else _BESIDE
    every = [phase for phases, _ in _PASSES.values() for phase in phases]
    for name, (phases, _) in _PASSES.items():
        tasks = [task for task in program if task.micro_batch == 0 and task.phase in (every if weaves else phases)]
        copies = [task for task in tasks if _travels(task) and task.phase in phases]
        if copies:
            yield _load(name, tasks, copies, beside)


def _load(name: str, tasks: Sequence[Task], copies: Sequence[Task], beside: frozenset[str]) -> Load:
    layers = len({task.layer for task in tasks if task.layer >= 0})
    work = [task for task in tasks if task.stream == COMPUTE or (task.collective and not _is_beside(task, beside))]
    work_s = sum(float(np.max(task.duration_ns)) for task in work) / 1e9
    moved = sum(float(np.max(task.collective.wire_bytes)) for task in copies if task.collective)
    asked, all_of_it = _busy_s(copies), _busy_s(tasks)
    link = min(asked, key=lambda one: (work_s - all_of_it[one] + asked[one]) / asked[one])
    others_s = all_of_it[link] - asked[link]
    return Load(name, link, *(value / layers for value in (moved, asked[link], work_s, others_s)))


def _busy_s(tasks: Sequence[Task]) -> dict[str, float]:
    """How long each link works for *tasks*."""
    found: dict[str, float] = {}
    for task in tasks:
        for link, busy_ns in task.collective.link_busy_ns.items() if task.collective else ():
            found[link] = found.get(link, 0.0) + busy_ns / 1e9
    return found


def _is_beside(task: Task, beside: frozenset[str]) -> bool:
    return task.stream in beside or task.stream.startswith(("pp_", "drive_"))


def _travels(task: Task) -> bool:
    """Whether *task* copies saved activations out, or back."""
    if task.stream == COPY_OUT:
        return any(item.kind == SAVED and item.tier == HOST_TIER for item in task.allocates)
    return task.stream == COPY_IN and any(item.kind == SAVED for item in task.allocates)
