"""How a library moves a collective between nodes: one file for each algorithm, found by its name.

An algorithm lists the courses that it can take, one for each protocol, and the network takes for each group the course
that ends first, as NCCL does from such a table. Inside one node what the library chose is in its timings already.
Latencies are those of NCCL's own table (NVIDIA/nccl 2.28, src/graph/tuning.cc, default constants); HCCL and RCCL are
taken to choose alike. Its empirical caps on rates a channel are not taken over: rates come from the links.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal

import numpy as np
import numpy.typing as npt

from simulator.hardware.collective import AnyOperation, passes
from simulator.parallel.placement import Spread

Amounts = npt.NDArray[np.float64]
Protocol = Literal["LL", "LL128", "Simple"]
"""LL: 4 of 8 bytes carry data, no fences. LL128: 120 of 128, over NVLink. Simple: all, with fences."""
PER_PROTOCOL: tuple[Protocol, ...] = ("LL", "LL128", "Simple")


@dataclass(frozen=True, slots=True)
class Group:
    """The groups of one axis as the library sees them; arrays hold an entry for each behaviour."""

    operation: AnyOperation
    message_bytes: Amounts
    """Of the whole buffer."""
    spread: Spread
    inside: npt.NDArray[np.int64]
    """Members that reach each other over scale-up links: a node to the library, a rack in a super-node."""
    scale_up_levels: int
    port_latency_s: Amounts
    """Memory to memory between two nodes of the group."""
    fast_links: bool
    """Scale-up links are better than PCIe."""
    switch_reduces: bool

    @property
    def domains(self) -> npt.NDArray[np.int64]:
        """Nodes that the group spans."""
        result: npt.NDArray[np.int64] = -(-self.spread.size // self.inside)
        return result

    @property
    def on_wire_bytes(self) -> Amounts:
        """What each member sends at least: the count behind bus bandwidth. All but the last pass on a broadcast."""
        share = 1.0 if self.operation == "one_to_all" else (self.spread.size - 1) / self.spread.size
        result: Amounts = passes(self.operation) * self.message_bytes * share
        return result


@dataclass(frozen=True, slots=True)
class Course:
    """One way to do it."""

    name: str
    valid: npt.NDArray[np.bool_]
    """For which behaviours' groups."""
    loads: Amounts
    """Bytes on each accelerator's ports, [levels, behaviours]."""
    latency_s: Amounts
    share: float = 1.0
    """Of the rate of the links, that data attains."""
    bus_bytes_per_s: float = np.inf
    """What the protocol moves at most, counted as bus bandwidth."""
    in_switch: bool = False
    """Scale-up switches reduce."""

    def least_s(self, group: Group) -> Amounts:
        """What the protocol itself needs for the bytes of *group*."""
        result: Amounts = group.on_wire_bytes / self.bus_bytes_per_s
        return result


@cache
def algorithms() -> dict[str, Callable[[Group], Iterator[Course]]]:
    """All of them by name."""
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {module.NAME: module.courses for module in modules}


@dataclass(frozen=True, slots=True)
class Taken:
    """What each behaviour's group takes."""

    busy_s: Amounts
    """Seconds that each level's links are kept busy, [levels, behaviours]."""
    latency_s: Amounts
    names: npt.NDArray[np.object_]


def soonest(group: Group, bytes_per_s: Amounts, in_switch_bytes_per_s: float | None) -> Taken:
    """The course that ends first, group by group.

    *bytes_per_s* [levels, behaviours] is what the ports attain for large messages, *in_switch_bytes_per_s* what
    scale-up switches reduce; None: they do not.
    """
    shape = group.spread.within.shape
    best_s, taken = np.full(shape[1], np.inf), Taken(np.zeros(shape), np.zeros(shape[1]), np.full(shape[1], "", object))
    for course in (one for courses in algorithms().values() for one in courses(group)):
        rates = bytes_per_s * course.share
        if course.in_switch and in_switch_bytes_per_s:
            rates[: group.scale_up_levels] = in_switch_bytes_per_s
        busy_s = np.where(course.loads > 0, np.maximum(course.loads / rates, course.least_s(group)), 0.0)
        total_s = busy_s.max(axis=0) + course.latency_s
        better = course.valid & (total_s < best_s)
        best_s = np.where(better, total_s, best_s)
        taken = Taken(
            np.where(better, busy_s, taken.busy_s),
            np.where(better, course.latency_s, taken.latency_s),
            np.where(better, course.name, taken.names),
        )
    return taken
