"""Lower bounds on step time and memory, in closed form, for many splits at once.

Time: the compute stream of a rank runs its kernels one after the other and waits for the communication inside layers,
so a stage takes at least their sum for every micro-batch; before its first one the stages before it run forward, after
its last one they run backward. The streams of parameter gathers and of gradient reductions, and the ports of each
level of the fabric, are bounds of their own. Memory: what is resident, and what is alive when a backward pass begins
that finds the stage full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.forecast.image_batches import ImageBatches
from simulator.planner.data_parallel import DataParallel
from simulator.planner.expert_rows import ExpertRows
from simulator.planner.image_prices import ImagePrices
from simulator.planner.layer_prices import LayerPrices
from simulator.planner.memory_bound import MemoryBound
from simulator.planner.passes import PARTS
from simulator.planner.splits import Splits
from simulator.planner.stages import StageSums, stage_edges, stage_sums
from simulator.program.job import Job

Values = npt.NDArray[np.float64]
TERMS = (*PARTS, "pipeline_bubble_s", "exposed_fsdp_s")
"""What a bound on the step is made of, named as the forecast names it."""
_KNOWN_ORDER = ("1f1b", "gpipe")
"""Schedules whose stages begin and end with whole passes: others may fill the pipeline faster."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Of each split: seconds of a step, what they are made of [terms, splits], bytes of device memory."""

    step_s: Values
    terms: Values
    peak_bytes: Values


class Bounds:
    """Bounds for splits of *job*'s model on its cluster, with its settings where a split says nothing."""

    def __init__(
        self, job: Job, experts: ExpertRows | None, global_batch_sequences: int, images: ImageBatches | None = None
    ) -> None:
        self._job = job
        self._images = ImagePrices(job, images) if images is not None else None
        self._batch = global_batch_sequences
        self._prices = LayerPrices(job, experts)
        self._data_parallel = DataParallel(job)
        self._memory = MemoryBound(job)
        self._experts = experts

    def of(self, splits: Splits) -> Bound:
        """The bounds of *splits*."""
        step_s, peak_bytes = np.zeros(len(splits)), np.zeros(len(splits))
        terms = np.zeros((len(TERMS), len(splits)))
        for stages in np.unique(splits["pp"]):
            rows = np.flatnonzero(splits["pp"] == stages)
            bound = self._of_pipeline(splits.only(rows), int(stages))
            step_s[rows], terms[:, rows], peak_bytes[rows] = bound.step_s, bound.terms, bound.peak_bytes
        return Bound(step_s, terms, peak_bytes)

    def _of_pipeline(self, splits: Splits, stages: int) -> Bound:
        model = self._job.architecture
        edges = stage_edges(len(model.layers), stages, model.mtp_layers)
        tokens, routed = self._tokens(splits, edges), self._routed(splits, edges)
        slots = self._slots(splits)
        micro_batches = self.micro_batches(splits)
        forward = tokens.forward + routed.forward
        backward = tokens.backward + routed.backward + tokens.again + routed.again
        self._add_ends(splits, forward, backward)
        if self._images is not None:
            keys, which = splits.numbered("dp_replicate", "dp_shard", "micro_batch_sequences")
            passes = np.array([self._images.least_s(*key) for key in keys])[which]
            forward[:, 0, 0] += passes[:, 0]
            backward[:, 0, 0] += passes[:, 1]
        sharding = self._data_parallel.of(splits, edges, slots)
        forward[:, 0] += sharding.forward_s
        backward[:, 0] += sharding.backward_s
        busy = routed.busy + sharding.busy_s
        saved = tokens.saved + routed.saved, tokens.restored_last + routed.restored_last
        return Bound(
            *self._time(micro_batches, forward, backward, busy, sharding.stream_s, sharding.tail_s),
            self._memory.of(splits, edges, slots, micro_batches, *saved),
        )

    def micro_batches(self, splits: Splits) -> npt.NDArray[np.int64]:
        """Micro-batches of a step on each rank."""
        once = splits["dp_replicate"] * splits["dp_shard"] * splits["micro_batch_sequences"]
        return np.asarray(self._batch // once)

    def _time(
        self,
        micro_batches: npt.NDArray[np.int64],
        forward: Values,
        backward: Values,
        busy: Values,
        stream_s: Values,
        tail_s: Values,
    ) -> tuple[Values, Values]:
        """Seconds of a step and their terms: forward and backward are [splits, parts, stages]."""
        rows, count = np.arange(len(forward)), micro_batches[:, None]
        one = forward + backward
        full = count * one.sum(axis=1)
        around = np.zeros_like(full)
        if self._job.schedule in _KNOWN_ORDER:
            around[:, 1:] = np.cumsum(one.sum(axis=1), axis=1)[:, :-1]
        chain = full + around + tail_s[:, :1]
        stage = chain.argmax(axis=1)
        work_s, streams_s = chain[rows, stage], (count * np.maximum(stream_s, busy.max(axis=1))).max(axis=1)
        step_s = np.maximum(work_s, streams_s)
        parts = (micro_batches[:, None] * one[rows, :, stage]).T
        exposed = tail_s[:, 0] + np.maximum(streams_s - work_s, 0.0)
        return step_s, np.concatenate([parts, [around[rows, stage]], [exposed]])

    def _tokens(self, splits: Splits, edges: npt.NDArray[np.int64]) -> StageSums:
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "recompute")
        return stage_sums([self._prices.tokens(edges, *key) for key in keys], edges)[which]

    def _routed(self, splits: Splits, edges: npt.NDArray[np.int64]) -> StageSums:
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "ep", "etp", "recompute")
        return stage_sums([self._prices.routed(edges, *key) for key in keys], edges)[which]

    def _slots(self, splits: Splits) -> npt.NDArray[np.int64]:
        """Experts that a rank holds, copies counted; 0 without experts."""
        if self._experts is None:
            return np.zeros(len(splits), np.int64)
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "ep")
        held = [self._experts.outcome(ep, self._prices.sent_tokens(*lane)).rows.shape[3] for *lane, ep in keys]
        return np.array(held, np.int64)[which]

    def _add_ends(self, splits: Splits, forward: Values, backward: Values) -> None:
        """The embedding on the first stage, the loss on the last."""
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences")
        ends = [self._prices.ends(*key) for key in keys]
        for times, direction in ((forward, 0), (backward, 1)):
            times[:, :, 0] += np.stack([end.embedding[direction] for end in ends])[which]
            times[:, :, -1] += np.stack([end.loss[direction] for end in ends])[which]
