"""Seconds of a step from those of a micro-batch on each virtual stage, for splits whose passes follow in one order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.planner.any_sharing import times_the_mean
from simulator.planner.orders import Order
from simulator.planner.passes import COMPUTE, HOST
from simulator.planner.splits import Column
from simulator.planner.stages import Values


@dataclass(frozen=True, slots=True)
class Work:
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
    late: Values
    """What the host is late by in a forward pass alone, in one beside a backward pass, and in a backward pass; and how
    often it waits in a forward pass, [splits, 4, stages]."""

    def of(self, which: Column) -> Work:
        """The splits that *which* names."""
        first, second = self.waited
        return Work(
            self.forward[which], self.backward[which], (first[which], second[which]), self.busy[which],
            self.stream[which], self.tail[which], self.exposed[which], self.late[which],
        )  # fmt: skip


def step_time(order: Order, micro_batches: npt.NDArray[np.int64], work: Work) -> tuple[Values, Values]:
    """Seconds of a step and their terms."""
    rows, ahead = np.arange(len(micro_batches)), order.ahead
    # Where a layer is on two stages, each of them runs half of its micro-batches.
    share = 1 / order.pipeline.copies
    parts = _parts(order, micro_batches, work)
    around = _before(work.forward, ahead) + (_before(work.backward, ahead) if order.returns else 0.0)
    tail_s = share * order.over_chunks(work.tail)
    late_s = _late(order, micro_batches, work)
    own, host_s = in_all(parts) + late_s, parts[:, HOST].max(axis=1)
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
    terms[HOST] = late_s[rows, stage] + np.maximum(host_s - busy_s, 0.0)
    return np.maximum(busy_s, host_s), terms


def least_step_time(order: Order, micro_batches: Column, work: Work) -> tuple[Values, Values]:
    """Seconds of a step and their terms, however the layers of *work* lie on stages."""
    first, second = work.waited
    forward, backward, *waited = (
        one.sum(axis=2, keepdims=True) for one in (work.forward, work.backward, first, second)
    )
    mean = (micro_batches / order.pipeline.stages)[:, None]
    parts = mean * together(order, forward, backward, (waited[0], waited[1]))[:, :, 0]
    work_s = in_all(parts)
    around = work_s * (times_the_mean(order, micro_batches) / mean[:, 0] - 1)
    streams_s = mean[:, 0] * work.busy.sum(axis=2).max(axis=1)
    exposed = np.maximum(streams_s - work_s - around, 0.0)
    busy_s = work_s + around + exposed
    parts[:, HOST] = np.maximum(parts[:, HOST] - busy_s, 0.0)
    return busy_s + parts[:, HOST], np.concatenate([parts.T, [around], [exposed]])


def together(order: Order, forward: Values, backward: Values, waited: tuple[Values, Values]) -> Values:
    """Seconds by part that a *forward* and a *backward* pass take at least, [splits, parts, stages], if they run
    together wherever passes do; *waited* as in `Work`.
    """
    both = forward + backward
    if not order.weaves:
        return both
    least = waited[0] + (0.0 if order.fills else waited[1])
    least[:, [COMPUTE, HOST]] = both[:, [COMPUTE, HOST]]
    longest = both[:, COMPUTE + 1 : HOST].argmax(axis=1)[:, None] + COMPUTE + 1
    more = np.maximum(np.take_along_axis(both, longest, axis=1)[:, 0] - in_all(least), 0.0)
    np.put_along_axis(least, longest, np.take_along_axis(least, longest, axis=1) + more[:, None], axis=1)
    return np.asarray(least)


def in_all(parts: Values) -> Values:
    """Seconds of all *parts* but the host's, which issues while they run, [splits, parts, stages]."""
    return np.asarray(sum(parts[:, part] for part in range(COMPUTE + 1, HOST)) + parts[:, COMPUTE])


def _parts(order: Order, micro_batches: npt.NDArray[np.int64], work: Work) -> Values:
    """Seconds by part of all passes of each stage, [splits, parts, stages]; of passes that run together all kernels,
    the transfers that both wait for, and what the longest kind of transfers takes beyond those.
    """
    if not order.weaves:
        count = micro_batches / order.pipeline.copies
        return np.asarray(count[:, None, None] * order.over_chunks(work.forward + work.backward))
    passes, (ahead, back) = _passes(order, micro_batches), order.unpaired(micro_batches)
    alone = _so_often(order, ahead, work.forward) + _so_often(order, back, work.backward)
    beside = _so_often(order, passes - ahead, work.forward) + _so_often(order, passes - back, work.backward)
    waited = _waited(order, work, passes - ahead, passes - back)
    for part in (COMPUTE, HOST):
        alone[:, part] += beside[:, part]
    alone += waited
    serial = beside[:, COMPUTE] + in_all(waited) + _late(order, micro_batches, work)
    longest = beside[:, COMPUTE + 1 : HOST].argmax(axis=1) + COMPUTE + 1
    moved = np.take_along_axis(beside, longest[:, None], axis=1)
    more = np.maximum(moved - serial[:, None], 0.0)
    np.put_along_axis(alone, longest[:, None], np.take_along_axis(alone, longest[:, None], axis=1) + more, axis=1)
    return alone


def _late(order: Order, micro_batches: npt.NDArray[np.int64], work: Work) -> Values:
    """Seconds by which the host is late in all passes of each stage, [splits, stages]."""
    alone, beside, back, often = (work.late[:, number][:, order.held] for number in range(4))
    passes = _passes(order, micro_batches)
    if not order.weaves:
        return np.asarray((passes * (alone + back)).sum(axis=2))
    ahead, _ = order.unpaired(micro_batches)
    # Where the other pass has fewer layers, what is left of this one runs alone.
    accompanied = often <= often.min(axis=2, keepdims=True)
    beside = np.where(accompanied, beside, np.minimum(alone, beside)) * (not order.fills)
    return np.asarray((ahead * alone + (passes - ahead) * beside).sum(axis=2))


def _passes(order: Order, micro_batches: npt.NDArray[np.int64]) -> Values:
    """Forward passes of each stage, as many as backward ones, [splits, stages, chunks]."""
    return np.repeat(micro_batches / order.pipeline.copies, order.held.size).reshape(-1, *order.held.shape)


def _so_often(order: Order, passes: Values, times: Values) -> Values:
    """Seconds by part of so many *passes* [splits, stages, chunks], each of which takes *times*."""
    chunks = enumerate(order.held.T)
    return np.asarray(sum(passes[:, None, :, chunk] * times[:, :, virtual] for chunk, virtual in chunks))


def _waited(order: Order, work: Work, forwards: Values, backwards: Values) -> Values:
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
    until = np.cumsum(in_all(times), axis=1)
    return np.concatenate([np.zeros((len(times), 1)), until], axis=1)[:, ahead]
