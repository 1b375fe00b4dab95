"""Prices of what goes on in a node's memory: copies between it and the cards, and sweeps of the node's cores over it.

A copy engine moves pinned memory at the rate of the card's link, memory that is not pinned at that of the driver's
detour. Three kinds of links are shared: a card's link in each direction, the same link in both where it attains less
than the sum, and the node's memory, which all cards of the node use alike and at once. Wrong where they do not: then
the memory is taken to be busier than it is.

    copies: seconds = copies * latency + max(bytes / rate of the link, cards * bytes / (memory bandwidth * share))
    sweeps: seconds = max(bytes / (threads * rate of a core), cards * bytes / (memory bandwidth * share))

Threads of a process are taken to be bound to neighbouring cores, one to each, and what they touch first lies in their
NUMA domains, whose channels alone carry it; all that one thread pins or shares lies in the domain of that thread,
however many cores of the process read it. With more domains than cards in use, the others' stay idle:

    seconds >= max(cards, domains) * (bytes there + other bytes / domains of the process) / (memory bandwidth * share)

Unbound threads wander between domains, and may find more of the memory's channels, or worse: farther ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

import numpy as np
import numpy.typing as npt

from simulator.engine.task import Allocation, Collective, Quantity
from simulator.hardware.cluster import Cluster
from simulator.hardware.figure import Figure
from simulator.hardware.pooled import LEVEL, memory_ratio, reached_bytes_per_s
from simulator.program.network import Transfer

COPY_OUT = "copy_out"
"""Stream, and kind, of copies from a card to its host."""
COPY_IN = "copy_in"
CORES = "cores"
"""Stream of what the node's cores do for a card."""
HOST_TIER = "ddr"
_COPIES = "host copies"
"""Communicator of copies: each behaviour is a group of its own, so that nobody waits for anybody."""
DRIVES = "drives"
"""Communicator of what drives do, and the link that reads and writes share."""
OF_THE_HOST = (_COPIES, CORES, DRIVES)
"""Communicators that are none of a library's, and hold no buffers on the card."""


class HostMemory:
    """Of one job's nodes. *behaviours*: those of a stage's ranks."""

    def __init__(self, cluster: Cluster, behaviours: int) -> None:
        self._link = cluster.node.host_link
        self._ratio = memory_ratio(cluster)
        self._reach_bytes_per_s = reached_bytes_per_s(cluster) if cluster.memory_nodes else np.inf
        self._memory_bytes_per_s = cluster.node.ddr.bandwidth.value * cluster.node.ddr.share.value * self._ratio
        self._memory_grade = cluster.node.ddr.bandwidth.grade
        self._cards = min(cluster.accelerators, cluster.node.accelerators)
        self._core_bytes_per_s = cluster.node.cpu.core_bandwidth.value
        self._core_grade = cluster.node.cpu.core_bandwidth.grade
        self._domains = 1 if cluster.node.ddr.domains is None else cluster.node.ddr.domains.value
        self._cores = cluster.node.cpu.cores.value
        self._flops_per_s = cluster.node.cpu.flops_per_s
        self._behaviours = behaviours

    def out(self, size: Quantity, *, copies: int = 1, pinned: bool = True) -> Transfer:
        """So many *copies*, one after the other, of *size* bytes in all from the card of each behaviour to its host."""
        return self._copy(COPY_OUT, size, copies, self._link.d2h if pinned else self._link.pageable_d2h)

    def into(self, size: Quantity, *, copies: int = 1, pinned: bool = True) -> Transfer:
        """The same from the host to its card."""
        return self._copy(COPY_IN, size, copies, self._link.h2d if pinned else self._link.pageable_h2d)

    def sweep(self, kind: str, traffic: Quantity, threads: int, *, near: Quantity = 0.0) -> Transfer:
        """A pass of *threads* cores for each card over the node's memory, *traffic* bytes read and written, of which
        *near* bytes are where one thread has pinned or shared them.
        """
        moved = np.asarray(traffic, np.float64)
        busy_s, cores_s = self._memory_s(moved), moved / (threads * self._core_bytes_per_s)
        memory_s = np.maximum(busy_s, self._domain_s(moved, np.asarray(near, np.float64), threads))
        grade = self._core_grade if np.max(cores_s) > np.max(memory_s) else self._memory_grade
        return self.transfer(kind, CORES, traffic, np.maximum(memory_s, cores_s), {"host memory": busy_s}, grade)

    def _domain_s(self, moved: npt.NDArray[np.float64], near: npt.NDArray[np.float64], threads: int) -> Quantity:
        """Seconds that the busiest NUMA domain works."""
        spanned = min(self._domains, ceil(threads * self._domains / self._cores))
        bytes_there = near + (moved - near) / spanned
        seconds: Quantity = max(self._cards, self._domains) * bytes_there / self._memory_bytes_per_s
        return seconds

    def multiply(self, traffic: float, flops: float, threads: int, *, formats: tuple[str, ...]) -> Transfer:
        """Products of *threads* cores for each card: *traffic* bytes of weights read, *flops* at the node's rate for
        the first of *formats* that it has, which all its cores attain together.
        """
        rates = [self._flops_per_s[name] for name in formats if name in self._flops_per_s]
        memory_s, cores_s = self._memory_s(traffic), traffic / (threads * self._core_bytes_per_s)
        products_s = flops * self._cores / (threads * rates[0].value)
        grade = rates[0].grade if products_s > max(float(memory_s), cores_s) else self._memory_grade
        seconds = max(float(memory_s), cores_s, products_s)
        return self.transfer("cpu_products", CORES, traffic, seconds, {"host memory": memory_s}, grade)

    def memory_busy_s(self, size: Quantity) -> dict[str, Quantity]:
        """Seconds that the node's memory works when something else moves *size* bytes for each card in or out of it."""
        return {"host memory": self._memory_s(size)}

    def link_in_busy_s(self, size: Quantity) -> dict[str, Quantity]:
        """Seconds that each card's link works when something else than its host sends it *size* bytes."""
        moved = np.asarray(size, np.float64)
        busy: dict[str, Quantity] = {f"host link {COPY_IN}": moved / self._link.h2d.value}
        return busy | ({} if self._link.both is None else {"host link": moved / self._link.both.value})

    def _copy(self, kind: str, size: Quantity, copies: int, rate: Figure[float]) -> Transfer:
        moved = np.asarray(size, np.float64)
        link_s, memory_s = moved / (rate.value * self._ratio), self._memory_s(size)
        reach_s = moved * (1.0 - 1.0 / self._ratio) / self._reach_bytes_per_s
        busy: dict[str, Quantity] = {f"host link {kind}": link_s, "host memory": memory_s}
        if self._link.both is not None:
            busy["host link"] = moved / (self._link.both.value * self._ratio)
        if self._ratio > 1.0:
            busy[LEVEL] = reach_s
        latency_s = np.where(moved > 0, copies * self._link.latency.value, 0.0)
        seconds: Quantity = latency_s + np.maximum(np.maximum(link_s, memory_s), reach_s)
        return self.transfer(kind, _COPIES, size, seconds, busy, rate.grade)

    def _memory_s(self, traffic: Quantity) -> Quantity:
        seconds: Quantity = self._cards * np.asarray(traffic, np.float64) / self._memory_bytes_per_s
        return seconds

    def transfer(
        self, kind: str, communicator: str, size: Quantity, seconds: Quantity, busy: dict[str, Quantity], grade: str
    ) -> Transfer:
        """*size* bytes for each card, each card by itself; *busy* tells how long links work for it, by name."""
        collective = Collective(
            communicator,
            np.arange(self._behaviours),
            {link: float(np.max(busy_s)) * 1e9 for link, busy_s in busy.items()},
            wire_bytes=size,
        )
        exact_ns = np.broadcast_to(np.asarray(seconds), (self._behaviours,)) * 1e9
        duration_ns = np.ceil(exact_ns.round(3)).astype(np.int64)
        return Transfer(kind, duration_ns, collective, grade)


def pinned(key: str, kind: str, pieces: Iterable[Quantity]) -> Allocation:
    """Pinned host memory for tensors of *pieces* bytes: each rounded up to a power of two.

    So does PyTorch's pinned allocator, which keeps blocks for the next tensor of their size
    (`CachingHostAllocator`, `PowerOf2Ceil`).
    """
    return host_memory(key, kind, [_rounded(size) for size in pieces])


def host_memory(key: str, kind: str, pieces: Iterable[Quantity], *, tier: str = HOST_TIER) -> Allocation:
    """Host memory, or another *tier* outside the card, for tensors of *pieces* bytes."""
    sizes = tuple(pieces)
    return Allocation(key, kind, sum(sizes), tier=tier, pieces=sizes if len(sizes) > 1 else ())


def _rounded(size: Quantity) -> Quantity:
    if isinstance(size, np.ndarray):
        return np.where(size > 0, 2.0 ** np.ceil(np.log2(np.maximum(size, 1.0))), 0.0)
    return float(1 << (ceil(size) - 1).bit_length()) if size > 0 else 0.0
