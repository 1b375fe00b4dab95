"""The all-to-all of expert parallelism, for many layers at once: what `Network.exchange` takes for each, at least.

Rows between two ranks are those of the forecast's own way to send them (`program/exchanges/`). Rates are the best that
any message attains, and latency is left out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from simulator.hardware.cluster import Cluster
from simulator.parallel.mesh import Mesh
from simulator.planner.rings import fastest
from simulator.program.exchanges import Mix, exchanges
from simulator.program.expert_load import node_members


class Exchange:
    """An expert-parallel group that starts where a domain of each level starts, and sends its rows one *way*."""

    def __init__(self, cluster: Cluster, mesh: Mesh, way: str) -> None:
        sizes = [level.size for level in cluster.levels]
        self._cluster = cluster
        self._mesh = mesh
        self._way = way
        self._domain = cluster.scale_up_domain
        self._levels = len(sizes)
        self._crossing: list[tuple[int, npt.NDArray[np.float64], float]] = []
        uneven = exchanges()[way].by_node and not node_members(mesh, self._domain)
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

    def busy_s(self, rows: npt.NDArray[np.int64], mixes: Callable[[int], list[Mix]]) -> npt.NDArray[np.float64]:
        """Time of the busiest port at each level, [levels, layers], in one exchange of each layer, a byte of a row.

        *rows* [layers, ranks, experts on the rank] are computed in all; *mixes* tells what tokens of each layer want of
        a group with so many ranks in each node.
        """
        busy = np.zeros((self._levels, len(rows)))
        if not self._crossing:
            return busy
        sent = self._sent(rows, mixes)
        for number, crossing, bytes_per_s in self._crossing:
            level = self._cluster.levels[number]
            if sent.shape[1] == 1:
                out, into = sent[:, 0] @ crossing.T, sent[:, 0] * crossing.sum(axis=0)
            else:
                out, into = (np.einsum(f"lij,ij->l{end}", sent, crossing) for end in "ij")
            busy[number] = self._cluster.port_bytes(level, out, into).max(axis=1) / bytes_per_s
        return busy

    def _sent(self, rows: npt.NDArray[np.int64], mixes: Callable[[int], list[Mix]]) -> npt.NDArray[np.float64]:
        """Rows from each rank to each rank, [layers, ranks, ranks]; [layers, 1, ranks] where all send the same."""
        if self._way == "all_to_all":
            ranks = self._mesh.ep
            return np.asarray(rows.sum(axis=2)[:, None] / ranks)
        way, members = exchanges()[self._way], node_members(self._mesh, self._domain) or self._mesh.ep
        sent = [way.sent(mix) for mix in mixes(members)]
        # A way gives a view of one row where all ranks send the same.
        return np.stack([one[:1] if one.strides[0] == 0 else one for one in sent])


def aligned(group: int, domain_sizes: list[int]) -> bool:
    """Whether neighbouring groups of *group* ranks all lie alike on the fabric."""
    return all(size % group == 0 or group % size == 0 for size in domain_sizes)
