"""Lower bounds on step time and memory, in closed form, for many splits at once.

Time: the compute stream of a rank runs its kernels one after the other and waits for the communication inside layers,
so a stage takes at least their sum for every micro-batch; before its first one the stages ahead of it run forward, and
but where gradients of weights come last, they run backward after its last one. Where the host waits to hear how many
rows come, the device has nothing to do until it has issued the next kernel. Two passes that run together take no less
than their kernels, and than their transfers of each kind. The streams of parameter gathers and of gradient
reductions, the host that launches kernels, and the ports of each level of the fabric, are bounds of their own. Memory:
what is resident, and what is alive when a stage holds most micro-batches. Where it is open how layers lie on stages,
all this is of any way to share them (`any_sharing.py`), at rough prices alone: those spread rows evenly over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.planner.any_sharing import Kinds
from simulator.planner.data_parallel import DataParallel, Sharding
from simulator.planner.memory_bound import MemoryBound
from simulator.planner.mixed_prices import MixedPrices
from simulator.planner.orders import Order
from simulator.planner.passes import COMPUTE, EXCHANGE, HOST, PARTS, TENSOR
from simulator.planner.sharing import share
from simulator.planner.splits import LAYOUT, OPEN, Column, Splits
from simulator.planner.stages import Edges, Values, stage_edges
from simulator.planner.step_times import Work, in_all, least_step_time, step_time, together
from simulator.program.job import Job

TERMS = (*PARTS, "pipeline_bubble_s", "exposed_fsdp_s")
"""What a bound on the step is made of, named as the forecast names it."""
_AT_ONCE = 100_000
"""Virtual stages of splits bounded together, so that their tables stay in a processor's cache."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Of each split: seconds of a step, what they are made of [terms, splits], bytes of device memory."""

    step_s: Values
    terms: Values
    peak_bytes: Values


_ORDER = ("pp", "virtual_pipeline", "schedule", "overlap")
"""What says how the passes of a pipeline follow each other."""
_APART = (*LAYOUT, "recompute", "exchange")
"""What tells splits apart that have one order: dp_replicate follows from the other degrees."""


class Bounds:
    """Bounds for splits of *job*'s model on its cluster at *prices*, with its settings where a split says nothing."""

    def __init__(self, job: Job, prices: MixedPrices, global_batch_sequences: int) -> None:
        self._job = job
        self._prices = prices
        self._batch = global_batch_sequences
        self._data_parallel = DataParallel(job)
        self._memory = MemoryBound(job)
        self._kinds = Kinds.of(job.architecture)

    def of(self, splits: Splits) -> Bound:
        """The bounds of *splits*."""
        step_s, peak_bytes = np.zeros(len(splits)), np.zeros(len(splits))
        terms = np.zeros((len(TERMS), len(splits)))
        keys, which = splits.numbered(*_ORDER, "sharing")
        for number, (*key, sharing) in enumerate(keys):
            together, order = np.flatnonzero(which == number), Order.of(*key)
            alike = self._prices.alike(splits.only(together))
            first, twin = alike.distinct(*_APART)
            bound = self._in_parts(alike.only(first), order, sharing)
            step_s[together], peak_bytes[together] = bound.step_s[twin], bound.peak_bytes[twin]
            terms[:, together] = bound.terms[:, twin]
        return Bound(step_s, terms, peak_bytes)

    def _in_parts(self, splits: Splits, order: Order, sharing: int) -> Bound:
        """Of *splits* in one *order* and with one *sharing* of layers, some at once."""
        model = self._job.architecture
        edges = stage_edges(len(model.layers), order.pipeline, model.mtp_layers, splits.shares[sharing])

        def in_one(some: Splits) -> Bound:
            return self._openly(some, order) if sharing == OPEN else self._shared(some, edges, order)

        at_once = max(1, _AT_ONCE // order.held.size)
        parts = [in_one(splits.only(slice(start, start + at_once))) for start in range(0, len(splits), at_once)]
        return Bound(
            np.concatenate([part.step_s for part in parts]),
            np.concatenate([part.terms for part in parts], axis=1),
            np.concatenate([part.peak_bytes for part in parts]),
        )

    def _shared(self, splits: Splits, edges: Edges, order: Order) -> Bound:
        """Of *splits* whose stages have the layers between *edges*."""
        prices, slots, micro_batches = self._prices, self._prices.slots(splits), self.micro_batches(splits)
        work, saved, restored = self._work(splits, edges, slots)
        exchange_bytes = prices.exchange_bytes(splits)
        peak_bytes = self._memory.of(splits, edges, order, slots, micro_batches, saved, restored, exchange_bytes)
        return Bound(*step_time(order, micro_batches, work), peak_bytes)

    def _openly(self, splits: Splits, order: Order) -> Bound:
        """Of *splits* whose layers may lie on stages in any way."""
        kinds, slots, micro_batches = self._kinds, self._prices.slots(splits), self.micro_batches(splits)
        work, saved, _ = self._work(splits, kinds.edges, slots)
        peak_bytes = self._memory.of_any_sharing(splits, kinds, order, slots, micro_batches, saved)
        return Bound(*least_step_time(order, micro_batches, work), peak_bytes)

    def shares(self, splits: Splits) -> list[tuple[int, ...]]:
        """Layers of each virtual stage for each of *splits*, as these prices have the slowest stage take least."""
        model, room_bytes = self._job.architecture, self._job.cluster.accelerator.hbm_capacity_bytes
        edges = np.array([0, *range(len(model.layers) + 1), len(model.layers) + model.mtp_layers])
        alike = self._prices.alike(splits)
        first, twin = alike.distinct(*_ORDER, *_APART)
        alike = alike.only(first)
        slots, micro_batches = self._prices.slots(alike), self.micro_batches(alike)
        work, saved, restored = self._work(alike, edges, slots)
        found: list[tuple[int, ...]] = [()] * len(alike)
        keys, which = alike.numbered(*_ORDER)
        for number, key in enumerate(keys):
            rows, order = np.flatnonzero(which == number), Order.of(*key)
            some = work.of(rows)
            both = together(order, some.forward, some.backward, some.waited)
            seconds = in_all(both), both[:, HOST]
            held = self._memory.moments(
                alike.only(rows), edges, order, slots[rows], micro_batches[rows], saved[rows], restored[rows]
            )
            for row, cut in zip(rows.tolist(), share(order, seconds, held, room_bytes), strict=True):
                found[row] = cut
        return [found[number] for number in twin.tolist()]

    def _work(self, splits: Splits, edges: Edges, slots: Column) -> tuple[Work, Values, Values]:
        """What a micro-batch of *splits* takes on the stages between *edges*, and bytes that it keeps there for its
        backward pass, and that are there again in a stage's last layer before that begins, [splits, stages].
        """
        tokens, routed = self._prices.tokens(splits, edges), self._prices.routed(splits, edges)
        forward, backward = tokens.forward.copy(), tokens.backward + tokens.again
        exchanges, told = self._prices.exchanges(splits, edges), self._prices.told(splits, edges)
        for times, direction in ((forward, told[:, 0]), (backward, told[:, 1] + told[:, 2])):
            times[:, EXCHANGE] += direction
        waited = forward.copy(), backward.copy()
        for way, times in enumerate(waited):
            times[:, TENSOR] += routed.waits[:, way]
        forward += routed.forward
        backward += routed.backward + routed.again
        if self._job.exchange_parts == 1:
            forward[:, EXCHANGE] += exchanges[:, 0]
            backward[:, EXCHANGE] += exchanges[:, 1] + exchanges[:, 2]
        self._prices.add_ends(splits, forward, backward)
        first, layout = splits.distinct(*LAYOUT)
        sharding = self._data_parallel.of(splits.only(first), edges, slots[first])[layout]
        forward[:, COMPUTE] += sharding.forward_s
        backward[:, COMPUTE] += sharding.backward_s
        busy, late = exchanges[:, 3:] + sharding.busy_s, self._late(splits, edges, sharding)
        exposed = np.maximum(sharding.reduced_s - in_all(backward) - late[:, 2], 0.0) * (sharding.reduced_s > 0)
        work = Work(forward, backward, waited, busy, sharding.stream_s, sharding.tail_s, exposed, late)
        return work, tokens.saved + routed.saved, tokens.restored_last + routed.restored_last

    def _late(self, splits: Splits, edges: Edges, sharding: Sharding) -> Values:
        """What the host is late by, as `Work` has it: copies of parameters may fill that time, and rows that go in
        parts come in another order.
        """
        late = self._prices.late(splits, edges)
        copied_s = np.stack([sharding.forward_s, sharding.forward_s, sharding.backward_s], axis=1)
        late[:, :3] = np.maximum(late[:, :3] - copied_s, 0.0) * (self._job.exchange_parts == 1)
        return late

    def micro_batches(self, splits: Splits) -> npt.NDArray[np.int64]:
        """Micro-batches of a step on each rank."""
        once = splits["dp_replicate"] * splits["dp_shard"] * splits["micro_batch_sequences"]
        return np.asarray(self._batch // once)
