"""Least prices of operators in two parts: one in proportion to their work, and one for each of their kernels.

The first is at the best rates of curves and links: a share of the work takes that share of it, or more. The second is
what a kernel takes however little it does, and all its share.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.engine.task import Quantity
from simulator.hardware.curve import choose
from simulator.hardware.least_time import least_time_s
from simulator.model.operator import Collective, Kernel
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.planner.pricing import Pricing
from simulator.planner.rings import ring_busy_s
from simulator.program.costs import Amount, Costs, Direction, Rows
from simulator.program.job import Job
from simulator.program.network import Network, Transfer


class LeastPricing(Pricing):
    """Pricing for splits of *job*'s model by either part: what *grows* with the work, or what does not."""

    def __init__(self, job: Job, *, grows: bool) -> None:
        costs = _Growing if grows else _Starting
        super().__init__(job, costs(job.cluster.accelerator, job.workload.execution))
        self._grows = grows

    def network(self, mesh: Mesh, _group: int) -> Network:
        """A network of one group of *mesh*, whose rings take what they take at the best rates of their links."""
        sizes = [level.size for level in self.job.cluster.levels]
        folding = apart(mesh.groups(), mesh.stage_ranks)
        network = _Rings if self._grows else _Silence
        return network(self.job.cluster, Placement(mesh, folding, sizes), mesh)


class _Growing(Costs):
    """Costs without starts, gaps, launches and weights of routed experts."""

    @property
    def launch_ns(self) -> int:
        """None: launches do not grow with the work."""
        return 0

    @property
    def looped_launch_ns(self) -> int:
        """None likewise."""
        return 0

    def _plain(self, kernel: Kernel, direction: Direction) -> tuple[float, str]:
        key = (kernel, direction)
        if key not in self._known:
            self._known[key] = self._least_s(kernel, direction, kernel.bytes + kernel.fixed_bytes), "measured"
        return self._known[key]

    def _routed(self, kernel: Kernel, rows: Rows, direction: Direction) -> tuple[Amount, str]:
        return rows.sum(axis=-1) * self._least_s(kernel, direction, kernel.bytes), "measured"

    def _least_s(self, kernel: Kernel, direction: Direction, moved_bytes: float) -> float:
        known = self._in_known_format(kernel)
        return least_time_s(
            self._accelerator,
            known.kind,
            known.flops,
            moved_bytes,
            known.shape,
            known.dtype,
            backward=direction != "forward",
            weight_gradient=direction == "weight gradient",
        )


class _Starting(Costs):
    """Starts of kernels and gaps between them; a rank without rows for its experts has gaps alone."""

    def _plain(self, kernel: Kernel, direction: Direction) -> tuple[float, str]:
        known = self._in_known_format(kernel)
        curve = choose(self._accelerator.curves[known.kind], known.dtype, backward=direction != "forward")
        works = kernel.flops or kernel.bytes or kernel.fixed_bytes
        return (curve.overhead * bool(works) + self._gap_s(kernel)) * kernel.launches, "measured"

    def _routed(self, kernel: Kernel, rows: Rows, _direction: Direction) -> tuple[Amount, str]:
        return np.full(len(rows), self._gap_s(kernel) * kernel.launches), "measured"


class _Rings(Network):
    """Rings without latency; what is not one takes no time."""

    def _collective(self, asked: Collective, size: Quantity) -> Transfer | None:
        priced = super()._collective(asked, size)
        if priced is None:
            return None
        ranks = np.array([self._placement.spread(asked.axis).size.max()])
        if asked.operation == "all_to_all" or asked.operation == "send" or asked.operation == "relay":
            return None
        ring_s = float(ring_busy_s(self._cluster, asked.operation, ranks, np.ones_like(ranks)).max())
        return replace(priced, duration_ns=np.array([int(np.max(size) * ring_s * 1e9)]))


class _Silence(Network):
    """Collectives that take no time."""

    def _collective(self, _asked: Collective, _size: Quantity) -> Transfer | None:
        return None
