"""Sends from one rank to another: the library's start, then bytes over the links between the two.

A send and its receive are an exchange of two ranks, so inside a node the start is what the shortest timed all-to-all of
two takes. Between nodes it is the Simple protocol's base and network step of NCCL's own table (NVIDIA/nccl 2.28,
src/graph/tuning.cc), since what a channel carries there soon exceeds the 16 KiB up to which LL is used; HCCL and RCCL
are taken to be alike. Messages below 32 KiB between nodes take less than is said here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simulator.hardware.cluster import SCALE_UP_KINDS, Cluster, Level

Amounts = npt.NDArray[np.float64]
BETWEEN_NODES_S = 8.4e-6 + 14e-6
"""Base of the Simple protocol and a step over the network, beside the latency of the port."""


def send_times(cluster: Cluster, reached: npt.NDArray[np.int64], size: float) -> tuple[Amounts, Amounts]:
    """Seconds that *size* bytes keep the links busy, [levels, sends], and what each waits besides, [sends].

    *reached* is the level over which each send goes: the innermost that holds both ranks. Two members of a mesh have
    the link between them.
    """
    levels = cluster.levels
    each_s = [
        size / (min(level.bandwidth_bytes_per_s, level.peer_bandwidth_bytes_per_s) * level.share) for level in levels
    ]
    busy_s = np.where(reached[None] == np.arange(len(levels))[:, None], np.array(each_s)[:, None], 0.0)
    return busy_s, np.array([_wait_s(cluster, level) for level in levels])[reached]


def _wait_s(cluster: Cluster, level: Level) -> float:
    if level.kind not in SCALE_UP_KINDS:
        return BETWEEN_NODES_S + level.latency_s
    exchange = cluster.node.scale_up.collectives.get("all_to_all")
    if exchange is None:
        return level.latency_s
    start_s = float(exchange.latency_s(2, 1.0))
    return start_s if level is cluster.levels[0] else start_s + level.latency_s
