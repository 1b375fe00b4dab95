"""The all-to-all of expert parallelism, for many layers at once: what `Network.exchange` takes for each, at least.

Every rank sends the same mix, so bytes between two ranks follow from the rows of the receiver alone. Rates are the best
that any message attains, and latency is left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simulator.hardware.cluster import Cluster
from simulator.parallel.mesh import Mesh
from simulator.planner.rings import fastest


class Exchange:
    """An expert-parallel group that starts where a domain of each level starts."""

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        sizes = [level.size for level in cluster.levels]
        self._ranks = mesh.ep
        self._levels = len(sizes)
        self._crossing: list[tuple[int, npt.NDArray[np.float64], float]] = []
        if mesh.ep == 1 or not aligned(mesh.ep * mesh.etp, sizes):
            return
        nearer = np.eye(mesh.ep, dtype=bool)
        for number, level in enumerate(cluster.levels):
            domain = np.arange(mesh.ep) * mesh.etp // level.size
            together = domain[:, None] == domain[None, :]
            crossing = together & ~nearer
            if crossing.any():
                self._crossing.append((number, crossing.astype(float), fastest(cluster, level, "all_to_all")))
            nearer = nearer | together

    def busy_s(self, rows: npt.NDArray[np.int64], payload_bytes: float) -> npt.NDArray[np.float64]:
        """Time of the busiest port at each level, [levels, layers], in one exchange of each layer.

        Each rank gets *rows* [layers, ranks] of *payload_bytes* in all.
        """
        sent = rows * (payload_bytes / self._ranks)
        busy = np.zeros((self._levels, len(rows)))
        for level, crossing, bytes_per_s in self._crossing:
            out, into = sent @ crossing.T, sent * crossing.sum(axis=0)
            busy[level] = np.maximum(out, into).max(axis=1) / bytes_per_s
        return busy


def aligned(group: int, domain_sizes: list[int]) -> bool:
    """Whether neighbouring groups of *group* ranks all lie alike on the fabric."""
    return all(size % group == 0 or group % size == 0 for size in domain_sizes)
