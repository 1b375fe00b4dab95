"""One collective alone on a cluster, as a library's benchmark times it."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from simulator.hardware.cluster import Cluster
from simulator.hardware.collective import AnyOperation
from simulator.model.operator import Collective
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.program.network import Network

Benchmarked = AnyOperation | Literal["send"]


def alone_s(
    cluster: Cluster, operation: Benchmarked, ranks: int, message_bytes: float
) -> tuple[float, tuple[str, ...]]:
    """Seconds of *operation* over the first *ranks* accelerators, and the algorithms that the library takes.

    *message_bytes* are those of the whole buffer; of an all-to-all, what each rank sends and keeps in all; of a send,
    those of each message: every rank sends one to the next.
    """
    if operation == "all_to_all":
        return exchange_alone_s(cluster, np.full((ranks, ranks), message_bytes / ranks)), ()
    network = _network(cluster, Mesh(cp=ranks) if operation == "send" else Mesh(dp_shard=ranks))
    if operation == "send":
        transfer = network.collective(Collective("send", "cp", message_bytes), message_bytes)
    elif operation == "one_to_all":
        transfer = network.broadcast("dp_shard", message_bytes)
    else:
        transfer = network.ring(operation, "dp_shard", message_bytes)
    return (float(transfer.duration_ns.max()) / 1e9, transfer.algorithms) if transfer else (0.0, ())


def exchange_alone_s(cluster: Cluster, sent_bytes: npt.NDArray[np.float64]) -> float:
    """Seconds of an exchange in which the rank of a row sends the rank of a column *sent_bytes* [ranks, ranks]."""
    ranks = len(sent_bytes)
    transfer = _network(cluster, Mesh(dp_shard=ranks, ep=ranks)).exchange(sent_bytes)
    return float(transfer.duration_ns.max()) / 1e9 if transfer else 0.0


def _network(cluster: Cluster, mesh: Mesh) -> Network:
    ranks = mesh.stage_ranks
    placement = Placement(mesh, apart(mesh.groups(), ranks), [level.size for level in cluster.levels])
    return Network(cluster, placement, mesh)
