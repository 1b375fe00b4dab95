"""Prices of what drives of a node read and write for its cards.

A process has so many requests of a block under way, each of which takes a drive's latency and its block's time at that
drive's rate, and the drives have a rate all together that the cards of the node share. By the bounds of a closed queue
(Denning and Buzen, The operational analysis of queueing network models, 1978) neither is exceeded:

    seconds = latency + max(bytes * (latency + block / rate of a drive) / (depth * block), cards * bytes / rate)

Reads and writes take each other's time, since both keep the same flash busy: a mixed load's figures on vendors' sheets
come close to that. What is staged passes the host's memory, which it shares with cores and copies; what goes to a card
directly (GPUDirect Storage) passes the card's link instead. Wrong where stripes are uneven, and for drives that cache
writes.
"""

from __future__ import annotations

import numpy as np

from simulator.engine.task import Quantity
from simulator.hardware.cluster import Cluster
from simulator.hardware.figure import Figure
from simulator.program.host_memory import DRIVES, HostMemory
from simulator.program.network import Transfer
from simulator.program.offload import OnDrives

DRIVE_READ = "drive_read"
"""Stream, and kind, of reads."""
DRIVE_WRITE = "drive_write"
DRIVE_TIER = "nvme"


class Drives:
    """Of one job's nodes, used as *way* says; *host* is the memory that they stage through."""

    def __init__(self, cluster: Cluster, host: HostMemory, way: OnDrives) -> None:
        assert cluster.node.nvme is not None
        self._nvme = cluster.node.nvme
        self._cards = min(cluster.accelerators, cluster.node.accelerators)
        self._host = host
        self._way = way

    def read(self, size: Quantity) -> Transfer:
        """*size* bytes for each card from the drives to pinned host memory."""
        return self._access(DRIVE_READ, size, self._nvme.read, self._nvme.read_latency, self._host.memory_busy_s(size))

    def write(self, size: Quantity) -> Transfer:
        """The same from host memory to the drives."""
        busy = self._host.memory_busy_s(size)
        return self._access(DRIVE_WRITE, size, self._nvme.write, self._nvme.write_latency, busy)

    def read_to_card(self, size: Quantity) -> Transfer:
        """*size* bytes for each card from the drives to its own memory."""
        return self._access(DRIVE_READ, size, self._nvme.read, self._nvme.read_latency, self._host.link_in_busy_s(size))

    def _access(
        self, kind: str, size: Quantity, rate: Figure[float], latency: Figure[float], busy: dict[str, Quantity]
    ) -> Transfer:
        moved, way = np.asarray(size, np.float64), self._way
        request_s = latency.value + way.block_bytes * self._nvme.drives.value / rate.value
        own_s = moved * request_s / (way.queue_depth * way.block_bytes)
        drives_s = self._cards * moved / rate.value
        longest = np.maximum.reduce([own_s, drives_s, *map(np.asarray, busy.values())])
        grade = latency.grade if np.max(own_s) > np.max(drives_s) else rate.grade
        seconds: Quantity = np.where(moved > 0, latency.value + longest, 0.0)
        return self._host.transfer(kind, DRIVES, size, seconds, {DRIVES: drives_s, **busy}, grade)
