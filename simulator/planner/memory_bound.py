"""Bytes of device memory that a split takes at least on the fullest rank of its fullest stage.

Counted when a backward pass begins that finds as many micro-batches in flight as the schedule ever has: resident
weights and optimizer, what is kept of all those micro-batches, the gradients of earlier ones, and the unsharded weights
of the layer whose turn it is. Beneath pipeline stages FSDP2 keeps what it has gathered and sums gradients whole: the
end of a backward pass may be fuller than its begin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.planner.any_sharing import Kinds, Pieces, least_held
from simulator.planner.orders import Order
from simulator.planner.sharing import Held
from simulator.planner.splits import LAYOUT, Column, Splits
from simulator.planner.stages import Edges, Values, over_stages
from simulator.planner.standing_memory import StandingMemory
from simulator.planner.weights import LayerWeights, Weights
from simulator.program.fsdp import COMPUTE_BYTES
from simulator.program.job import Job
from simulator.program.optimizers import least_moment_bytes


@dataclass(frozen=True, slots=True)
class _Held:
    """Bytes of weights that are sharded alike, on each virtual stage, [splits, stages]."""

    weights: Values
    """With the gradients that every rank holds whole."""
    states: Values
    """What two copies of a stage would share of the optimizer."""
    unsharded: Values
    """Gathered in the backward pass of the last layer."""
    staying: Values
    """Gathered parameters and whole gradients of all layers and ends that stay until the last micro-batch."""
    trained: Values
    """Elements that are trained."""


@dataclass(frozen=True, slots=True)
class Layouts:
    """Bytes that do not depend on what is kept for the backward pass, by layout."""

    resident: Values
    """[layouts, stages]."""
    unsharded: Values
    """[layouts, virtual stages]."""
    staying: Values
    """[layouts, stages]."""


class MemoryBound:
    """For splits of *job*'s model."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._weights = LayerWeights(job)
        self._standing = StandingMemory(job)

    def of(
        self,
        splits: Splits,
        edges: Edges,
        order: Order,
        slots: Column,
        micro_batches: Column,
        saved: Values,
        restored_last: Values,
        exchange_bytes: Values,
    ) -> Values:
        """Bytes of each split. *saved* is kept for the backward pass of a micro-batch by a virtual stage,
        *restored_last* comes back in its last layer before that pass begins there, [splits, virtual stages];
        *exchange_bytes* are the buffers of the exchange of rows, [splits].
        """
        first, layout = splits.distinct(*LAYOUT)
        of_layout = self._layouts(splits.only(first), edges, order, slots[first])
        saved = self._on_card(saved)
        held, (alive, ended) = order.held, _in_flight(order, micro_batches)
        before = (alive * saved[:, held]).sum(axis=2)
        if order.fullest_before_backward:
            before += (restored_last + of_layout.unsharded[layout])[:, held].min(axis=2)
        behind = of_layout.staying[layout] + (ended * saved[:, held]).sum(axis=2)
        resident = of_layout.resident[layout] + self._standing.buffers(splits, edges, order, exchange_bytes)
        return np.asarray((resident + np.maximum(before, behind)).max(axis=1))

    def of_any_sharing(
        self, splits: Splits, kinds: Kinds, order: Order, slots: Column, micro_batches: Column, saved: Values
    ) -> Values:
        """Bytes of each split however its layers lie on stages. *saved* as in `of`, by piece of *kinds*."""
        pieces = self.pieces(splits, kinds.edges, order, slots)
        saved = self._on_card(saved)
        alive, behind = _in_flight(order, micro_batches)
        before = least_held(kinds, Pieces(pieces.resident, saved), order, alive)
        after = least_held(kinds, Pieces(pieces.resident + pieces.staying, saved), order, behind)
        return np.asarray(self._standing.of_all(splits) + np.maximum(before, after))

    def _on_card(self, saved: Values) -> Values:
        """What of *saved* does not go to the host."""
        return saved if self._job.offload.activations is None else np.zeros_like(saved)

    def pieces(self, splits: Splits, edges: Edges, order: Order, slots: Column) -> Layouts:
        """Bytes of weights of *splits* in pieces of the model between *edges*, whatever stage they are on."""
        dense, routed = self._both(splits, edges, slots)
        resident = dense.weights + routed.weights + (dense.states + routed.states) / order.pipeline.copies
        return Layouts(resident, dense.unsharded + routed.unsharded, dense.staying + routed.staying)

    def moments(
        self,
        splits: Splits,
        edges: Edges,
        order: Order,
        slots: Column,
        micro_batches: Column,
        saved: Values,
        restored: Values,
    ) -> tuple[Held, Held]:
        """What pieces of the model between *edges* hold when a stage may be fullest: as a backward pass
        begins, and as one ends. *saved* and *restored* as in `of`, by piece.
        """
        pieces, standing = self.pieces(splits, edges, order, slots), self._standing.of_all(splits)
        saved = self._on_card(saved)
        alive, behind = _in_flight(order, micro_batches)
        ahead = 2 if self._job.prefetch and self._job.reshard_after_forward else 1
        coming = (restored + ahead * pieces.unsharded).max(axis=1) * order.fullest_before_backward
        return (
            Held(pieces.resident, saved, alive, standing + coming),
            Held(pieces.resident + pieces.staying, saved, behind, standing),
        )

    def _both(self, splits: Splits, edges: Edges, slots: Column) -> tuple[_Held, _Held]:
        """What is outside and within routed experts."""
        fsdp = splits["dp_shard"] * splits["cp"]
        expert_shards = fsdp * splits["tp"] // (splits["ep"] * splits["etp"])
        dense = self._held(splits, edges, "tp", fsdp, np.ones_like(slots))
        return dense, self._held(splits, edges, "etp", expert_shards, slots)

    def _layouts(self, splits: Splits, edges: Edges, order: Order, slots: Column) -> Layouts:
        dense, routed = self._both(splits, edges, slots)
        resident = order.over_chunks(dense.weights + routed.weights)
        resident += order.over_chunks(dense.states + routed.states) / order.pipeline.copies
        resident += self._standing.of(splits, edges, order, (dense.trained, routed.trained))
        staying = order.over_chunks(dense.staying + routed.staying)
        return Layouts(resident, dense.unsharded + routed.unsharded, staying)

    def _held(self, splits: Splits, edges: Edges, axis: str, ranks: Column, copies: Column) -> _Held:
        keys, which = splits.numbered(axis)
        count = self._weights.dense if axis == "tp" else self._weights.experts
        counted: list[Weights] = [count(*key) for key in keys]
        frozen, trained = (
            np.stack([_with_ends(getattr(one, name), edges) for one in counted])[which] * copies[:, None]
            for name in ("frozen", "trained")
        )
        layers, learnt = (
            np.stack([_with_ends(amounts, edges, tower=False) for amounts in of_all])[which] * copies[:, None]
            for of_all in ([one.elements for one in counted], [one.trained for one in counted])
        )
        held = np.stack([self._unsharded(one.elements[2:-1], edges) for one in counted])[which] * copies[:, None]
        optimizer, share, fully = self._job.optimizer, 1 / ranks[:, None], (splits["zero"] == 3)[:, None]
        offload = self._job.offload
        stored, moments = optimizer.stored_bytes, least_moment_bytes(optimizer) * (not offload.updated_on_host)
        on_card = self._job.shard_bytes + moments
        sharded = (frozen * self._job.frozen_bytes + trained * on_card) * share * (not offload.fetches)
        whole = frozen * self._job.frozen_bytes + trained * (COMPUTE_BYTES + self._job.reduce_bytes)
        master = stored if stored != COMPUTE_BYTES else 0
        gathered = fully & (ranks[:, None] > 1)
        stay = gathered & (splits["pp"] > 1)[:, None]
        staying = layers * self._job.gathered_bytes + learnt * self._job.reduce_bytes
        return _Held(
            weights=np.where(fully, sharded, whole),
            states=np.where(fully, 0.0, trained * (master + moments) * share),
            unsharded=np.where(gathered, held * self._job.gathered_bytes, 0.0),
            staying=np.where(stay, staying, 0.0),
            trained=trained,
        )

    def _unsharded(self, elements: Values, edges: Edges) -> Values:
        """Elements that a stage holds unsharded in its last layer's backward pass: that layer, and the one before it,
        whose gather is under way. None where it has no layer.
        """
        held = np.where(np.diff(edges) > 0, elements[edges[1:] - 1], 0.0)
        if self._job.prefetch and self._job.reshard_after_forward:
            held = held + np.where(np.diff(edges) > 1, elements[edges[1:] - 2], 0.0)
        return held


def _in_flight(order: Order, micro_batches: Column) -> tuple[Values, Values]:
    """Micro-batches alive when a stage is fullest as a backward pass begins, and as it ends: none that is sure where a
    stage has several chunks. [splits, stages, chunks].
    """
    alive = order.alive(micro_batches)
    return alive, np.maximum(alive - 1, 0) if order.pipeline.chunks == 1 else np.zeros_like(alive)


def _with_ends(elements: Values, edges: Edges, *, tower: bool = True) -> Values:
    """Elements of each stage: the vision *tower* and the embedding on the first, the head on the last."""
    stages = over_stages(elements[2:-1], edges)
    stages[0] += elements[0] * tower + elements[1]
    stages[-1] += elements[-1]
    return stages
