"""Bytes of device memory that a split takes at least on the fullest rank of its fullest stage.

Counted when a backward pass begins that finds as many micro-batches in flight as the schedule ever has: resident
weights and optimizer, what is kept of all those micro-batches, the gradients of earlier ones, and the unsharded weights
of the layer whose turn it is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simulator.forecast.memory import COMMUNICATOR_BYTES, CONTEXT_BYTES
from simulator.planner.orders import Order
from simulator.planner.splits import Column, Splits
from simulator.planner.stages import over_stages
from simulator.planner.weights import LayerWeights, Weights
from simulator.program.fsdp import COMPUTE_BYTES
from simulator.program.job import Job
from simulator.program.optimizers import least_moment_bytes

Values = npt.NDArray[np.float64]


class MemoryBound:
    """For splits of *job*'s model."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._weights = LayerWeights(job)

    def of(
        self,
        splits: Splits,
        edges: npt.NDArray[np.int64],
        order: Order,
        slots: Column,
        micro_batches: Column,
        saved: Values,
        restored_last: Values,
    ) -> Values:
        """Bytes of each split. *saved* is kept for the backward pass of a micro-batch by a virtual stage,
        *restored_last* comes back in its last layer before that pass begins there, [splits, virtual stages].
        """
        fsdp = splits["dp_shard"] * splits["cp"]
        expert_shards = fsdp * splits["tp"] // (splits["ep"] * splits["etp"])
        dense = self._resident(splits, edges, "tp", fsdp, np.ones_like(slots))
        routed = self._resident(splits, edges, "etp", expert_shards, slots)
        weights, states, unsharded = (one + other for one, other in zip(dense, routed, strict=True))
        if self._job.offload.activations is not None:
            saved = np.zeros_like(saved)
        held, copies = order.held, order.pipeline.copies
        kept = (order.alive(micro_batches) * saved[:, held]).sum(axis=2)
        peak = weights[:, held].sum(axis=2) + states[:, held].sum(axis=2) / copies + kept
        if order.fullest_before_backward:
            peak += (restored_last + unsharded)[:, held].min(axis=2)
        return np.asarray(peak.max(axis=1) + CONTEXT_BYTES + COMMUNICATOR_BYTES * self._communicators(splits, fsdp))

    def _resident(
        self, splits: Splits, edges: npt.NDArray[np.int64], axis: str, ranks: Column, copies: Column
    ) -> tuple[Values, Values, Values]:
        """Of a virtual stage: weights and gradients, what two copies of it would share of the optimizer, and what it
        holds unsharded of its last layer.
        """
        keys, which = splits.numbered(axis)
        count = self._weights.dense if axis == "tp" else self._weights.experts
        counted: list[Weights] = [count(*key) for key in keys]
        frozen, trained = (
            np.stack([_with_ends(getattr(one, name), edges) for one in counted])[which] * copies[:, None]
            for name in ("frozen", "trained")
        )
        held = np.stack([self._unsharded(one.elements[2:-1], edges) for one in counted])[which] * copies[:, None]
        optimizer, share, fully = self._job.optimizer, 1 / ranks[:, None], (splits["zero"] == 3)[:, None]
        offload = self._job.offload
        stored, moments = optimizer.stored_bytes, least_moment_bytes(optimizer) * (not offload.updated_on_host)
        on_card = self._job.shard_bytes + moments
        sharded = (frozen * self._job.frozen_bytes + trained * on_card) * share * (not offload.fetches)
        whole = frozen * self._job.frozen_bytes + trained * (COMPUTE_BYTES + self._job.reduce_bytes)
        master = stored if stored != COMPUTE_BYTES else 0
        unsharded = np.where(fully & (ranks[:, None] > 1), held * self._job.gathered_bytes, 0.0)
        return np.where(fully, sharded, whole), np.where(fully, 0.0, trained * (master + moments) * share), unsharded

    def _unsharded(self, elements: Values, edges: npt.NDArray[np.int64]) -> Values:
        """Elements that a stage holds unsharded in its last layer's backward pass: that layer, and the one before it,
        whose gather is under way.
        """
        held = elements[edges[1:] - 1]
        if self._job.prefetch and self._job.reshard_after_forward:
            held = held + np.where(np.diff(edges) > 1, elements[edges[1:] - 2], 0.0)
        return held

    def _communicators(self, splits: Splits, fsdp: Column) -> Column:
        """Communicators that surely exist: each axis with more than one rank that every layer or step uses."""
        found = (splits["ep"] > 1).astype(np.int64) + (splits["tp"] > 1) + (splits["pp"] > 1)
        return np.asarray(found + ((fsdp > 1) & (splits["zero"] == 3)))


def _with_ends(elements: Values, edges: npt.NDArray[np.int64]) -> Values:
    """Elements of each stage: the vision tower and the embedding on the first, the head on the last."""
    stages = over_stages(elements[2:-1], edges)
    stages[0] += elements[0] + elements[1]
    stages[-1] += elements[-1]
    return stages
