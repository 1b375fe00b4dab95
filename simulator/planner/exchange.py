"""The all-to-all of expert parallelism, for many layers at once: what `Network.exchange` takes for each, at least.

Every rank sends the same mix, so bytes between two ranks follow from the rows of the receiver alone. Rates and latency
are read off one transfer of the lowering's own network.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simulator.hardware.cluster import Cluster
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.program.network import Network

_PROBE_BYTES = 1e6


class Exchange:
    """An expert-parallel group that starts where a domain of each level starts."""

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        sizes = [level.size for level in cluster.levels]
        placement = Placement(mesh, apart(mesh.groups(), mesh.stage_ranks), sizes)
        uniform = np.full((mesh.ep, mesh.ep), _PROBE_BYTES)
        whole = Network(cluster, placement, mesh).exchange(uniform)
        self._ranks = mesh.ep
        self._levels = len(sizes)
        self._crossing: list[tuple[int, npt.NDArray[np.float64], float]] = []
        self._latency_s = 0.0
        if whole is None or not aligned(mesh.ep * mesh.etp, sizes):
            return
        out, _ = placement.exchange_loads(uniform)
        busy_ns = whole.collective.link_busy_ns
        # Less the bytes, what is left is latency; whole nanoseconds were rounded up.
        self._latency_s = max(0.0, (int(np.min(whole.duration_ns)) - 1 - max(busy_ns.values())) / 1e9)
        nearer = np.eye(mesh.ep, dtype=bool)
        for number, (level, load) in enumerate(zip(cluster.levels, out, strict=True)):
            domain = np.arange(mesh.ep) * mesh.etp // level.size
            together = domain[:, None] == domain[None, :]
            if load.any():
                rate = load.max() / busy_ns[level.name] * 1e9
                self._crossing.append((number, (together & ~nearer).astype(float), rate))
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

    @property
    def latency_s(self) -> float:
        """What an exchange takes beside moving bytes."""
        return self._latency_s


def aligned(group: int, domain_sizes: list[int]) -> bool:
    """Whether neighbouring groups of *group* ranks all lie alike on the fabric."""
    return all(size % group == 0 or group % size == 0 for size in domain_sizes)
