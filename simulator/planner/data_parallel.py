"""What data parallelism adds to a stage at least: FSDP2 (Megatron-FSDP, which copies nothing), or ZeRO-1 at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.model.operator import Kernel
from simulator.planner.rings import ring_busy_s
from simulator.planner.splits import Column, Splits
from simulator.planner.stages import over_stages
from simulator.planner.weights import LayerWeights, Weights
from simulator.program.costs import Costs
from simulator.program.fsdp import COMPUTE_BYTES
from simulator.program.host_memory import HostMemory
from simulator.program.job import Job
from simulator.program.optimizers import least_moment_bytes

Values = npt.NDArray[np.float64]
_LARGE_BYTES = (1e8, 1e9, 1e10)
"""Kernels of these sizes are tried: one of them runs at the highest rate there is."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """Of one micro-batch unless said otherwise, [splits, stages]."""

    forward_s: Values
    """Copies on the compute stream."""
    backward_s: Values
    stream_s: Values
    """The busiest one of the streams of gathers, of reductions and of sums between replicas."""
    busy_s: Values
    """Ports of each level, [splits, levels, stages]."""
    tail_s: Values
    """Behind the last micro-batch of the step."""
    reduced_s: Values
    """Reductions or sums, all of which are through before the next forward pass, whichever take longer."""

    def __getitem__(self, which: Column) -> Sharding:
        """The rows that *which* names."""
        return Sharding(*(getattr(self, name)[which] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class _Group:
    """Weights that are sharded alike, [splits, stages]: elements of the layers, of the ends, and trained ones."""

    layers: Values
    ends: Values
    trained: Values
    ranks: Column
    busy: dict[str, Values]
    """Seconds a byte by operation, [levels, splits, 1]; "all_reduce" is the one between replicas."""

    @property
    def sharded(self) -> npt.NDArray[np.bool_]:
        """Whether more than one rank shares them."""
        return (self.ranks > 1)[:, None]

    def slowest(self, operation: str) -> Values:
        """Seconds a byte of the busiest level, [splits, 1]."""
        return np.asarray(self.busy[operation].max(axis=0))


class DataParallel:
    """For splits of *job*'s model."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._weights = LayerWeights(job)
        costs = Costs(job.cluster.accelerator, job.workload.execution)
        copies = () if job.megatron_fsdp else ("split_copy", "chunk_cat")
        self._copy_s, self._cat_s = [_per_byte(costs, kind) for kind in copies] or (0.0, 0.0)
        optimizer = job.optimizer
        update_bytes = 3 * optimizer.stored_bytes + 2 * least_moment_bytes(optimizer)
        self._update_s = update_bytes * min(_per_byte(costs, "optimizer", dtype) for dtype in ("fp32", "bf16"))
        if job.offload.updated_on_host:
            self._update_s = job.offload.updated_on_host * _on_host_s(job)

    def of(self, splits: Splits, edges: npt.NDArray[np.int64], slots: Column) -> Sharding:
        """What it adds to *splits*, whose stages have the layers between *edges*; a rank holds *slots* experts."""
        groups = self._groups(splits, edges, slots)
        # What pipeline stages gather and reduce once a step (PipelinedFsdp) is left out.
        fully = ((splits["zero"] == 3) & (splits["pp"] == 1))[:, None]
        whole = (splits["zero"] != 3)[:, None]
        width = self._job.gathered_bytes
        forward = sum(2 * width * (g.layers + g.ends) * g.sharded for g in groups) * self._copy_s * fully
        backward = np.zeros_like(forward)
        # A second gather from parts that were kept nearby may cost next to nothing.
        twice = 2 if self._job.reshard_after_forward and self._job.mesh.post_forward == 1 else 1
        gathers, reductions, sums = (np.zeros_like(forward) for _ in range(3))
        busy = np.zeros((len(self._job.cluster.levels), *forward.shape))
        for g in groups:
            backward += (twice - 1) * 2 * width * g.layers * g.sharded * self._copy_s * fully
            backward += (COMPUTE_BYTES + self._job.reduce_bytes) * g.trained * g.sharded * self._cat_s * fully
            gathered = width * (twice * g.layers + g.ends) * fully
            reduced = self._job.reduce_bytes * g.trained * fully
            shared = np.where(g.sharded, reduced, COMPUTE_BYTES * g.trained * fully) / g.ranks[:, None]
            gathers += gathered * g.slowest("all_gather")
            reductions += reduced * g.slowest("reduce_scatter")
            sums += shared * g.slowest("all_reduce")
            busy += gathered * g.busy["all_gather"] + reduced * g.busy["reduce_scatter"]
            busy += shared * g.busy["all_reduce"]
        reductions = np.maximum(reductions, sums)
        waits = fully & (not self._job.megatron_fsdp)
        return Sharding(
            forward, backward, np.maximum(gathers, reductions), busy.transpose(1, 0, 2), self._tail(groups, whole),
            reductions * waits,
        )  # fmt: skip

    def _tail(self, groups: tuple[_Group, ...], whole: npt.NDArray[np.bool_]) -> Values:
        """The update, and around it what ZeRO-1 does, which keeps parameters *whole*, if not beside compute."""
        tail, beside = np.zeros_like(groups[0].layers), self._job.distributed_optimizer
        for g in groups:
            owned = g.trained / g.ranks[:, None]
            tail += owned * self._update_s
            reduced = g.trained * g.slowest("reduce_scatter") + owned * g.slowest("all_reduce")
            gathered = self._job.gathered_bytes * g.trained * g.slowest("all_gather")
            tail += whole * self._job.reduce_bytes * reduced * (not beside.overlaps_reductions)
            tail += whole * gathered * (not beside.overlaps_gathers)
        return tail

    def _groups(self, splits: Splits, edges: npt.NDArray[np.int64], slots: Column) -> tuple[_Group, ...]:
        fsdp = splits["dp_shard"] * splits["cp"]
        replica = fsdp * splits["tp"]
        expert = splits["ep"] * splits["etp"]
        dense = self._group(splits, edges, "tp", self._weights.dense, fsdp, splits["tp"], replica)
        routed = self._group(splits, edges, "etp", self._weights.experts, replica // expert, expert, replica)
        held = slots[:, None]
        return dense, _Group(routed.layers * held, routed.ends, routed.trained * held, routed.ranks, routed.busy)

    def _group(
        self,
        splits: Splits,
        edges: npt.NDArray[np.int64],
        axis: str,
        weights: Callable[[int], Weights],
        ranks: Column,
        stride: Column,
        replica: Column,
    ) -> _Group:
        keys, which = splits.numbered(axis)
        counted: list[Weights] = [weights(degree) for (degree,) in keys]
        layers, trained = (
            np.stack([over_stages(getattr(one, name)[2:-1], edges) for one in counted])[which]
            for name in ("elements", "trained")
        )
        ends = np.zeros_like(layers)
        for position, stage in ((1, 0), (-1, -1)):
            ends[:, stage] += np.array([one.elements[position] for one in counted])[which]
            trained[:, stage] += np.array([one.trained[position] for one in counted])[which]
        cluster = self._job.cluster
        busy = {
            "all_gather": ring_busy_s(cluster, "all_gather", ranks, stride)[..., None],
            "reduce_scatter": ring_busy_s(cluster, "reduce_scatter", ranks, stride)[..., None],
            "all_reduce": ring_busy_s(cluster, "all_reduce", splits["dp_replicate"], replica)[..., None],
        }
        return _Group(layers, ends, trained, ranks, busy)


def _on_host_s(job: Job) -> float:
    """Seconds of the update of one element by the host's cores, at least: what is copied for it is left out."""
    sweep = HostMemory(job.cluster, 1).sweep(
        "cpu_optimizer", job.optimizer.sweep_bytes * _LARGE_BYTES[-1], job.offload.threads
    )
    return float(sweep.duration_ns[0]) / 1e9 / _LARGE_BYTES[-1]


def _per_byte(costs: Costs, kind: str, dtype: str = "bf16") -> float:
    """Seconds a byte of the fastest large kernel."""
    kernels = (Kernel(kind, 0.0, size, dtype=dtype) for size in _LARGE_BYTES)
    return min(float(np.max(costs.price(kernel).duration_ns)) / kernel.bytes for kernel in kernels) / 1e9
