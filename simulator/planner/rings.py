"""Ring collectives of data parallelism for many splits at once: seconds a byte that each level is kept busy, at least.

A group of n ranks that lie *stride* apart passes (n - 1) / n of a buffer; twice in an all-reduce, unless switches
reduce. A domain of *size* accelerators holds at most ceil(size / stride) of them, each with a port, so that a port of
the next level out carries no less than that share.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simulator.hardware.cluster import SCALE_UP_KINDS, Cluster, Level
from simulator.hardware.collective import Operation
from simulator.planner.splits import Column

PerLevel = npt.NDArray[np.float64]
"""[levels, splits]."""


def ring_busy_s(cluster: Cluster, operation: Operation, ranks: Column, stride: Column) -> PerLevel:
    """Seconds for each byte of the whole buffer."""
    twice = operation == "all_reduce" and cluster.node.scale_up.in_switch is None
    passed = (2.0 if twice else 1.0) * (ranks - 1) / ranks
    busy = np.zeros((len(cluster.levels), len(ranks)))
    inside, block = np.ones_like(ranks), ranks * stride
    alike = np.ones(len(ranks), bool)
    for level in cluster.levels:
        alike &= (level.size % block == 0) | (block % level.size == 0)
    for number, level in enumerate(cluster.levels):
        members = np.minimum(ranks, -(-level.size // stride))
        # Only what surely leaves the inner domain: groups that lie differently on the fabric are left out.
        reached = alike & (ranks > inside) & (level.size // stride > inside)
        busy[number] = np.where(reached, passed / inside / fastest(cluster, level, operation), 0.0)
        inside = np.maximum(inside, members)
    return busy


def fastest(cluster: Cluster, level: Level, operation: Operation) -> float:
    """The most bytes a second that one accelerator moves at *level*, whatever the size of the group."""
    links = cluster.node.scale_up
    collective = links.collectives.get(operation)
    if collective is None or level.kind not in SCALE_UP_KINDS:
        nic = cluster.node.nic
        one_sided = nic.one_sided.share.value if nic is not None and nic.one_sided is not None else 0.0
        return level.bandwidth_bytes_per_s * max(level.share, level.ring_share, one_sided)
    in_switch = links.in_switch.value if links.in_switch and operation == "all_reduce" else 0.0
    beyond = links.rings_beyond.value if links.rings_beyond else 0.0
    return level.bandwidth_bytes_per_s * max(collective.best_share, in_switch, beyond)
