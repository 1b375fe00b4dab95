"""Lower bounds on step time and memory, in closed form, for many splits at once.

Time: the compute stream of a rank runs its kernels one after the other and waits for the communication inside layers,
so a stage takes at least their sum for every micro-batch; before its first one the stages ahead of it run forward, and
but where gradients of weights come last, they run backward after its last one. Two passes that run together take no
less than their kernels, and than their transfers of each kind. The streams of parameter gathers and of gradient
reductions, the host that launches kernels, and the ports of each level of the fabric, are bounds of their own. Memory:
what is resident, and what is alive when a stage holds most micro-batches. Where it is open how layers lie on stages,
all this is of any way to share them (`any_sharing.py`), at rough prices alone: those spread rows evenly over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.planner.any_sharing import Kinds, times_the_mean
from simulator.planner.data_parallel import DataParallel
from simulator.planner.memory_bound import MemoryBound
from simulator.planner.mixed_prices import MixedPrices
from simulator.planner.orders import Order
from simulator.planner.passes import COMPUTE, EXCHANGE, HOST, PARTS
from simulator.planner.sharing import share
from simulator.planner.splits import LAYOUT, OPEN, Column, Splits
from simulator.planner.stages import Edges, Values, stage_edges
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


@dataclass(frozen=True, slots=True)
class _Work:
    """Of one micro-batch on each virtual stage: seconds [splits, parts, stages], of ports [splits, levels, stages], of
    the busier stream of data parallelism and behind the last micro-batch [splits, stages].
    """

    forward: Values
    backward: Values
    waited: tuple[Values, Values]
    """Of the transfers in *forward* and *backward*: while nothing of another pass is computed either."""
    busy: Values
    stream: Values
    tail: Values
    exposed: Values
    """Reductions of data parallelism in a micro-batch that nothing runs beside, [splits, stages]."""

    def of(self, which: Column) -> _Work:
        """The splits that *which* names."""
        first, second = self.waited
        return _Work(
            self.forward[which], self.backward[which], (first[which], second[which]), self.busy[which],
            self.stream[which], self.tail[which], self.exposed[which],
        )  # fmt: skip


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
        return Bound(*_time(order, micro_batches, work), peak_bytes)

    def _openly(self, splits: Splits, order: Order) -> Bound:
        """Of *splits* whose layers may lie on stages in any way."""
        kinds, slots, micro_batches = self._kinds, self._prices.slots(splits), self.micro_batches(splits)
        work, saved, _ = self._work(splits, kinds.edges, slots)
        peak_bytes = self._memory.of_any_sharing(splits, kinds, order, slots, micro_batches, saved)
        return Bound(*_least_time(order, micro_batches, work), peak_bytes)

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
            together = _together(order, some.forward, some.backward, some.waited)
            seconds = _in_all(together), together[:, HOST]
            held = self._memory.moments(
                alike.only(rows), edges, order, slots[rows], micro_batches[rows], saved[rows], restored[rows]
            )
            for row, cut in zip(rows.tolist(), share(order, seconds, held, room_bytes), strict=True):
                found[row] = cut
        return [found[number] for number in twin.tolist()]

    def _work(self, splits: Splits, edges: Edges, slots: Column) -> tuple[_Work, Values, Values]:
        """What a micro-batch of *splits* takes on the stages between *edges*, and bytes that it keeps there for its
        backward pass, and that are there again in a stage's last layer before that begins, [splits, stages].
        """
        tokens, routed = self._prices.tokens(splits, edges), self._prices.routed(splits, edges)
        forward, backward = tokens.forward.copy(), tokens.backward + tokens.again
        exchanges, told = self._prices.exchanges(splits, edges), self._prices.told(splits, edges)
        for times, direction in ((forward, told[:, 0]), (backward, told[:, 1] + told[:, 2])):
            times[:, EXCHANGE] += direction
        waited = forward.copy(), backward.copy()
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
        busy = exchanges[:, 3:] + sharding.busy_s
        exposed = np.where(sharding.reduced_s > 0, np.maximum(sharding.reduced_s - _in_all(backward), 0.0), 0.0)
        work = _Work(forward, backward, waited, busy, sharding.stream_s, sharding.tail_s, exposed)
        return work, tokens.saved + routed.saved, tokens.restored_last + routed.restored_last

    def micro_batches(self, splits: Splits) -> npt.NDArray[np.int64]:
        """Micro-batches of a step on each rank."""
        once = splits["dp_replicate"] * splits["dp_shard"] * splits["micro_batch_sequences"]
        return np.asarray(self._batch // once)


def _time(order: Order, micro_batches: npt.NDArray[np.int64], work: _Work) -> tuple[Values, Values]:
    """Seconds of a step and their terms."""
    rows, ahead = np.arange(len(micro_batches)), order.ahead
    # Where a layer is on two stages, each of them runs half of its micro-batches.
    share = 1 / order.pipeline.copies
    parts = _parts(order, micro_batches, work)
    around = _before(work.forward, ahead) + (_before(work.backward, ahead) if order.returns else 0.0)
    tail_s = share * order.over_chunks(work.tail)
    own, host_s = _in_all(parts), parts[:, HOST].max(axis=1)
    exposed = micro_batches[:, None] * order.over_chunks(work.exposed)
    chain = own + exposed + around + (tail_s[:, :1] if order.returns else tail_s)
    stage = chain.argmax(axis=1)
    streams = order.over_chunks(work.stream)
    for level in range(work.busy.shape[1]):
        streams = np.maximum(streams, order.over_chunks(work.busy[:, level]))
    work_s, streams_s = chain[rows, stage], share * micro_batches * streams.max(axis=1)
    exposed = (chain - own - around)[rows, stage] + np.maximum(streams_s - work_s, 0.0)
    terms = np.concatenate([parts[rows, :, stage].T, [around[rows, stage]], [exposed]])
    busy_s = np.maximum(work_s, streams_s)
    terms[HOST] = np.maximum(host_s - busy_s, 0.0)
    return np.maximum(busy_s, host_s), terms


def _least_time(order: Order, micro_batches: Column, work: _Work) -> tuple[Values, Values]:
    """Seconds of a step and their terms, however the layers of *work* lie on stages."""
    first, second = work.waited
    forward, backward, *waited = (
        one.sum(axis=2, keepdims=True) for one in (work.forward, work.backward, first, second)
    )
    mean = (micro_batches / order.pipeline.stages)[:, None]
    parts = mean * _together(order, forward, backward, (waited[0], waited[1]))[:, :, 0]
    work_s = _in_all(parts)
    around = work_s * (times_the_mean(order, micro_batches) / mean[:, 0] - 1)
    streams_s = mean[:, 0] * work.busy.sum(axis=2).max(axis=1)
    exposed = np.maximum(streams_s - work_s - around, 0.0)
    busy_s = work_s + around + exposed
    parts[:, HOST] = np.maximum(parts[:, HOST] - busy_s, 0.0)
    return busy_s + parts[:, HOST], np.concatenate([parts.T, [around], [exposed]])


def _together(order: Order, forward: Values, backward: Values, waited: tuple[Values, Values]) -> Values:
    """Seconds by part that a *forward* and a *backward* pass take at least, [splits, parts, stages], if they run
    together wherever passes do; *waited* as in `_Work`.
    """
    both = forward + backward
    if not order.weaves:
        return both
    least = waited[0] + (0.0 if order.fills else waited[1])
    least[:, [COMPUTE, HOST]] = both[:, [COMPUTE, HOST]]
    longest = both[:, COMPUTE + 1 : HOST].argmax(axis=1)[:, None] + COMPUTE + 1
    more = np.maximum(np.take_along_axis(both, longest, axis=1)[:, 0] - _in_all(least), 0.0)
    np.put_along_axis(least, longest, np.take_along_axis(least, longest, axis=1) + more[:, None], axis=1)
    return np.asarray(least)


def _in_all(parts: Values) -> Values:
    """Seconds of all *parts* but the host's, which issues while they run, [splits, parts, stages]."""
    return np.asarray(sum(parts[:, part] for part in range(COMPUTE + 1, HOST)) + parts[:, COMPUTE])


def _parts(order: Order, micro_batches: npt.NDArray[np.int64], work: _Work) -> Values:
    """Seconds by part of all passes of each stage, [splits, parts, stages]; of passes that run together all kernels,
    the transfers that both wait for, and what the longest kind of transfers takes beyond those.
    """
    count = micro_batches / order.pipeline.copies
    if not order.weaves:
        return np.asarray(count[:, None, None] * order.over_chunks(work.forward + work.backward))
    passes = np.repeat(count, order.held.size).reshape(-1, *order.held.shape)
    ahead, back = order.unpaired(micro_batches)
    alone = _so_often(order, ahead, work.forward) + _so_often(order, back, work.backward)
    beside = _so_often(order, passes - ahead, work.forward) + _so_often(order, passes - back, work.backward)
    waited = _waited(order, work, passes - ahead, passes - back)
    for part in (COMPUTE, HOST):
        alone[:, part] += beside[:, part]
    alone += waited
    serial, longest = beside[:, COMPUTE] + _in_all(waited), beside[:, COMPUTE + 1 : HOST].argmax(axis=1) + COMPUTE + 1
    moved = np.take_along_axis(beside, longest[:, None], axis=1)
    more = np.maximum(moved - serial[:, None], 0.0)
    np.put_along_axis(alone, longest[:, None], np.take_along_axis(alone, longest[:, None], axis=1) + more, axis=1)
    return alone


def _so_often(order: Order, passes: Values, times: Values) -> Values:
    """Seconds by part of so many *passes* [splits, stages, chunks], each of which takes *times*."""
    chunks = enumerate(order.held.T)
    return np.asarray(sum(passes[:, None, :, chunk] * times[:, :, virtual] for chunk, virtual in chunks))


def _waited(order: Order, work: _Work, forwards: Values, backwards: Values) -> Values:
    """Seconds by part of transfers in so many passes of pairs that the next kernel of both passes waits for.

    A pass is cut where it waits for an exchange. Elsewhere a kernel that waits holds up the other pass, too, unless
    gradients of weights come before it.
    """
    ahead, behind = work.waited
    waited = _so_often(order, forwards, ahead)
    if not order.fills:
        waited += _so_often(order, backwards, behind)
    waited[:, [COMPUTE, HOST]] = 0.0
    return waited


def _before(times: Values, ahead: npt.NDArray[np.int64]) -> Values:
    """Seconds of the virtual stages *ahead* of each stage, [splits, stages]."""
    until = np.cumsum(_in_all(times), axis=1)
    return np.concatenate([np.zeros((len(times), 1)), until], axis=1)[:, ahead]
