"""The all-to-all of expert parallelism, for many layers at once: what `Network.exchange` takes for each, at least.

Rows between two ranks are those of the forecast's own way to send them (`program/exchanges/`). Rates are the best that
any message attains, and latency is left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simulator.hardware.cluster import Cluster
from simulator.parallel.mesh import Mesh
from simulator.planner.rings import fastest
from simulator.program.expert_load import node_members, wire_rows
from simulator.program.network import scale_up_domain
from simulator.routing.coverage import Choice


class Exchange:
    """An expert-parallel group that starts where a domain of each level starts, and sends its rows one *way*."""

    def __init__(self, cluster: Cluster, mesh: Mesh, way: str) -> None:
        sizes = [level.size for level in cluster.levels]
        self._mesh = mesh
        self._way = way
        self._domain = scale_up_domain(cluster)
        self._levels = len(sizes)
        self._crossing: list[tuple[int, npt.NDArray[np.float64], float]] = []
        uneven = way != "all_to_all" and not node_members(mesh, self._domain)
        if mesh.ep == 1 or uneven or not aligned(mesh.ep * mesh.etp, sizes):
            return
        nearer = np.eye(mesh.ep, dtype=bool)
        for number, level in enumerate(cluster.levels):
            domain = np.arange(mesh.ep) * mesh.etp // level.size
            together = domain[:, None] == domain[None, :]
            crossing = together & ~nearer
            if crossing.any():
                self._crossing.append((number, crossing.astype(float), fastest(cluster, level, "all_to_all")))
            nearer = nearer | together

    def busy_s(
        self, rows: npt.NDArray[np.int64], choice: Choice, destinations: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.float64]:
        """Time of the busiest port at each level, [levels, layers], in one exchange of each layer, a byte of a row.

        *rows* [layers, ranks, experts on the rank] are computed in all; a token's *choice*, or the *destinations*
        [layers, tokens, top_k] of recorded ones, say for whom.
        """
        busy = np.zeros((self._levels, len(rows)))
        if not self._crossing:
            return busy
        picked = [None] * len(rows) if destinations is None else list(destinations)
        sent = np.stack(
            [
                wire_rows(layer, self._mesh, self._way, choice, self._domain, chosen)
                for layer, chosen in zip(rows, picked, strict=True)
            ]
        )
        for level, crossing, bytes_per_s in self._crossing:
            over = sent * crossing
            busy[level] = np.maximum(over.sum(axis=2), over.sum(axis=1)).max(axis=1) / bytes_per_s
        return busy


def aligned(group: int, domain_sizes: list[int]) -> bool:
    """Whether neighbouring groups of *group* ranks all lie alike on the fabric."""
    return all(size % group == 0 or group % size == 0 for size in domain_sizes)
