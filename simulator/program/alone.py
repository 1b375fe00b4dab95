"""One collective alone on a cluster, as a library's benchmark times it."""

from __future__ import annotations

from typing import Literal

import numpy as np

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
    sends = operation == "send"
    mesh = Mesh(cp=ranks) if sends else Mesh(dp_shard=ranks, ep=ranks if operation == "all_to_all" else 1)
    placement = Placement(mesh, apart(mesh.groups(), ranks), [level.size for level in cluster.levels])
    network = Network(cluster, placement, mesh)
    if operation == "all_to_all":
        transfer = network.exchange(np.full((ranks, ranks), message_bytes / ranks))
    elif operation == "send":
        transfer = network.collective(Collective("send", "cp", message_bytes), message_bytes)
    elif operation == "one_to_all":
        transfer = network.broadcast("dp_shard", message_bytes)
    else:
        transfer = network.ring(operation, "dp_shard", message_bytes)
    return (float(transfer.duration_ns.max()) / 1e9, transfer.algorithms) if transfer else (0.0, ())
