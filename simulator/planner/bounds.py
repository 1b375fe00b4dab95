"""Lower bounds on step time and memory, in closed form, for many splits at once.

Time: the compute stream of a rank runs its kernels one after the other and waits for the communication inside layers,
so a stage takes at least their sum for every micro-batch; before its first one the stages ahead of it run forward, and
but where gradients of weights come last, they run backward after its last one. Two passes that run together take no
less than their kernels, and than their transfers of each kind. The streams of parameter gathers and of gradient
reductions, and the ports of each level of the fabric, are bounds of their own. Memory: what is resident, and what is
alive when a stage holds most micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.forecast.image_batches import ImageBatches
from simulator.planner.data_parallel import DataParallel
from simulator.planner.expert_rows import ExpertRows
from simulator.planner.image_prices import ImagePrices
from simulator.planner.memory_bound import MemoryBound
from simulator.planner.orders import Order
from simulator.planner.passes import COMPUTE, EXCHANGE, PARTS
from simulator.planner.pricing import Pricing
from simulator.planner.routed_prices import RoutedPrices
from simulator.planner.splits import Splits
from simulator.planner.stages import StageSums, over_stages, stage_edges, stage_sums
from simulator.planner.token_prices import TokenPrices
from simulator.program.job import Job

Values = npt.NDArray[np.float64]
TERMS = (*PARTS, "pipeline_bubble_s", "exposed_fsdp_s")
"""What a bound on the step is made of, named as the forecast names it."""
_AT_ONCE = 20_000
"""Splits bounded together, so that tables of all their stages stay small."""


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


class Bounds:
    """Bounds for splits of *job*'s model on its cluster, with its settings where a split says nothing."""

    def __init__(
        self, job: Job, experts: ExpertRows | None, global_batch_sequences: int, images: ImageBatches | None = None
    ) -> None:
        self._job = job
        self._images = ImagePrices(job, images) if images is not None else None
        self._batch = global_batch_sequences
        pricing = Pricing(job)
        self._token_prices = TokenPrices(pricing)
        self._routed_prices = RoutedPrices(pricing, self._token_prices, experts)
        self._data_parallel = DataParallel(job)
        self._memory = MemoryBound(job)

    def of(self, splits: Splits) -> Bound:
        """The bounds of *splits*."""
        step_s, peak_bytes = np.zeros(len(splits)), np.zeros(len(splits))
        terms = np.zeros((len(TERMS), len(splits)))
        keys, which = splits.numbered("pp", "virtual_pipeline", "schedule", "overlap")
        for number, key in enumerate(keys):
            together = np.flatnonzero(which == number)
            for start in range(0, len(together), _AT_ONCE):
                rows = together[start : start + _AT_ONCE]
                bound = self._in_order(splits.only(rows), Order.of(*key))
                step_s[rows], terms[:, rows], peak_bytes[rows] = bound.step_s, bound.terms, bound.peak_bytes
        return Bound(step_s, terms, peak_bytes)

    def _in_order(self, splits: Splits, order: Order) -> Bound:
        model = self._job.architecture
        edges = stage_edges(len(model.layers), order.pipeline, model.mtp_layers)
        tokens, routed = self._tokens(splits, edges), self._routed(splits, edges)
        slots, micro_batches = self._slots(splits), self.micro_batches(splits)
        work = self._work(splits, edges, slots, tokens, routed)
        saved = tokens.saved + routed.saved, tokens.restored_last + routed.restored_last
        return Bound(
            *_time(order, micro_batches, work),
            self._memory.of(splits, edges, order, slots, micro_batches, *saved, self._exchange_bytes(splits)),
        )

    def _work(
        self,
        splits: Splits,
        edges: npt.NDArray[np.int64],
        slots: npt.NDArray[np.int64],
        tokens: StageSums,
        routed: StageSums,
    ) -> _Work:
        forward, backward = tokens.forward.copy(), tokens.backward + tokens.again
        exchanges, told = self._exchanges(splits, edges), self._told(splits, edges)
        for times, direction in ((forward, told[:, 0]), (backward, told[:, 1] + told[:, 2])):
            times[:, EXCHANGE] += direction
        waited = forward.copy(), backward.copy()
        forward += routed.forward
        backward += routed.backward + routed.again
        if self._job.exchange_parts == 1:
            forward[:, EXCHANGE] += exchanges[:, 0]
            backward[:, EXCHANGE] += exchanges[:, 1] + exchanges[:, 2]
        self._add_ends(splits, forward, backward)
        if self._images is not None:
            keys, which = splits.numbered("dp_replicate", "dp_shard", "micro_batch_sequences")
            passes = np.array([self._images.least_s(*key) for key in keys])[which]
            forward[:, COMPUTE, 0] += passes[:, 0]
            backward[:, COMPUTE, 0] += passes[:, 1]
        sharding = self._data_parallel.of(splits, edges, slots)
        forward[:, COMPUTE] += sharding.forward_s
        backward[:, COMPUTE] += sharding.backward_s
        return _Work(forward, backward, waited, exchanges[:, 3:] + sharding.busy_s, sharding.stream_s, sharding.tail_s)

    def micro_batches(self, splits: Splits) -> npt.NDArray[np.int64]:
        """Micro-batches of a step on each rank."""
        once = splits["dp_replicate"] * splits["dp_shard"] * splits["micro_batch_sequences"]
        return np.asarray(self._batch // once)

    def _tokens(self, splits: Splits, edges: npt.NDArray[np.int64]) -> StageSums:
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "recompute")
        return stage_sums([self._token_prices.passes(edges, *key) for key in keys], edges)[which]

    def _routed(self, splits: Splits, edges: npt.NDArray[np.int64]) -> StageSums:
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "ep", "etp", "recompute")
        return stage_sums([self._routed_prices.passes(edges, *key) for key in keys], edges)[which]

    def _exchanges(self, splits: Splits, edges: npt.NDArray[np.int64]) -> Values:
        """Seconds of exchanges forward, backward and where they run again, then of all on each level's busiest port,
        [splits, 3 + levels, stages].
        """
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "ep", "etp", "recompute", "exchange")
        found = []
        for tp, cp, sequences, ep, etp, recompute, way in keys:
            busy_s = self._routed_prices.busy_s(tp, cp, sequences, ep, etp, way)
            row_bytes = self._routed_prices.passes(edges, tp, cp, sequences, ep, etp, recompute).row_bytes
            found.append(np.concatenate([row_bytes * busy_s.max(axis=0), row_bytes.sum(axis=0) * busy_s]))
        return over_stages(np.stack(found), edges)[which]

    def _told(self, splits: Splits, edges: npt.NDArray[np.int64]) -> Values:
        """Seconds in which the host waits for numbers of rows, forward, backward and in what runs again,
        [splits, 3, stages].
        """
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "ep", "etp", "recompute", "exchange")
        found = []
        for tp, cp, sequences, ep, etp, recompute, way in keys:
            times = self._routed_prices.passes(edges, tp, cp, sequences, ep, etp, recompute).told
            found.append(times * self._routed_prices.told_s(tp, cp, sequences, ep, etp, way))
        return over_stages(np.stack(found), edges)[which]

    def _slots(self, splits: Splits) -> npt.NDArray[np.int64]:
        """Experts that a rank holds, copies counted; 0 without experts."""
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "ep")
        return np.array([self._routed_prices.slots(*key) for key in keys], np.int64)[which]

    def _exchange_bytes(self, splits: Splits) -> Values:
        """Buffers that the exchange of rows keeps on a rank."""
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "ep", "exchange")
        return np.array([self._routed_prices.buffer_bytes(*key) for key in keys])[which]

    def _add_ends(self, splits: Splits, forward: Values, backward: Values) -> None:
        """The embedding on the first stage, the loss on the last."""
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences")
        ends = [self._token_prices.ends(*key) for key in keys]
        for times, direction in ((forward, 0), (backward, 1)):
            times[:, :, 0] += np.stack([end.embedding[direction] for end in ends])[which]
            times[:, :, -1] += np.stack([end.loss[direction] for end in ends])[which]


def _time(order: Order, micro_batches: npt.NDArray[np.int64], work: _Work) -> tuple[Values, Values]:
    """Seconds of a step and their terms."""
    rows, held, ahead = np.arange(len(micro_batches)), order.held, order.ahead
    # Where a layer is on two stages, each of them runs half of its micro-batches.
    share = 1 / order.pipeline.copies
    parts = _parts(order, micro_batches, work)
    around = _before(work.forward, ahead) + (_before(work.backward, ahead) if order.returns else 0.0)
    tail_s = share * work.tail[:, held].sum(axis=2)
    behind = tail_s[:, :1] if order.returns else tail_s
    chain = parts.sum(axis=1) + around + behind
    stage = chain.argmax(axis=1)
    streams = np.maximum(work.stream[:, held].sum(axis=2), work.busy[:, :, held].sum(axis=3).max(axis=1))
    work_s, streams_s = chain[rows, stage], (share * micro_batches[:, None] * streams).max(axis=1)
    exposed = (chain - parts.sum(axis=1) - around)[rows, stage] + np.maximum(streams_s - work_s, 0.0)
    terms = np.concatenate([parts[rows, :, stage].T, [around[rows, stage]], [exposed]])
    return np.maximum(work_s, streams_s), terms


def _parts(order: Order, micro_batches: npt.NDArray[np.int64], work: _Work) -> Values:
    """Seconds by part of all passes of each stage, [splits, parts, stages]; of passes that run together all kernels,
    the transfers that both wait for, and what the longest kind of transfers takes beyond those.
    """
    forward, backward = work.forward[:, :, order.held], work.backward[:, :, order.held]
    count = micro_batches[:, None, None, None] / order.pipeline.copies
    if not order.weaves:
        return np.asarray((count * (forward + backward)).sum(axis=3))
    ahead, back = (number[:, None] for number in order.unpaired(micro_batches))
    alone = (ahead * forward + back * backward).sum(axis=3)
    beside = ((count - ahead) * forward + (count - back) * backward).sum(axis=3)
    waited = _waited(order, work, count - ahead, count - back)
    alone[:, COMPUTE] += beside[:, COMPUTE]
    alone += waited
    serial, longest = beside[:, COMPUTE] + waited.sum(axis=1), beside[:, COMPUTE + 1 :].argmax(axis=1) + COMPUTE + 1
    moved = np.take_along_axis(beside, longest[:, None], axis=1)
    more = np.maximum(moved - serial[:, None], 0.0)
    np.put_along_axis(alone, longest[:, None], np.take_along_axis(alone, longest[:, None], axis=1) + more, axis=1)
    return np.asarray(alone)


def _waited(order: Order, work: _Work, forwards: Values, backwards: Values) -> Values:
    """Seconds by part of transfers in so many passes of pairs that the next kernel of both passes waits for.

    A pass is cut where it waits for an exchange. Elsewhere a kernel that waits holds up the other pass, too, unless
    gradients of weights come before it.
    """
    ahead, behind = (one[:, :, order.held] for one in work.waited)
    waited = np.asarray((forwards * ahead + (0.0 if order.fills else backwards) * behind).sum(axis=3))
    waited[:, COMPUTE] = 0.0
    return waited


def _before(times: Values, ahead: npt.NDArray[np.int64]) -> Values:
    """Seconds of the virtual stages *ahead* of each stage, [splits, stages]."""
    until = np.cumsum(times.sum(axis=1), axis=1)
    return np.concatenate([np.zeros((len(times), 1)), until], axis=1)[:, ahead]
