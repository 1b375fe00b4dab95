"""What a micro-batch of a split costs on each virtual stage, with every shape of its operators priced as forecasts do.

Shapes are priced when a split first has them, and remembered.
"""

from __future__ import annotations

import numpy as np

from simulator.forecast.image_batches import ImageBatches
from simulator.planner.expert_rows import ExpertRows
from simulator.planner.image_prices import ImagePrices
from simulator.planner.passes import COMPUTE, Amounts, Passes
from simulator.planner.pricing import Pricing
from simulator.planner.routed_prices import RoutedPrices
from simulator.planner.splits import Column, Splits
from simulator.planner.stages import Edges, StageSums, Values, over_stages, stage_sums
from simulator.planner.token_prices import TokenPrices
from simulator.program.job import Job


class SplitPrices:
    """For splits of *job*'s model, which has *experts* or none, and *images* or none."""

    def __init__(self, job: Job, experts: ExpertRows | None, images: ImageBatches | None = None) -> None:
        self._images = ImagePrices(job, images) if images is not None else None
        pricing = Pricing(job)
        self._of_tokens = TokenPrices(pricing)
        self._of_rows = RoutedPrices(pricing, self._of_tokens, experts)
        self._one_by_one = job.per_expert

    def alike(self, splits: Splits) -> Splits:
        """*splits* as they are: all are told apart."""
        return splits

    def tokens(self, splits: Splits, edges: Edges) -> StageSums:
        """What runs over a rank's own tokens."""
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "recompute")
        return stage_sums([self._of_tokens.passes(edges, *key) for key in keys], edges)[which]

    def routed(self, splits: Splits, edges: Edges) -> StageSums:
        """What runs over routed rows, but exchanges."""
        keys, which = splits.numbered("zero", "tp", "cp", "micro_batch_sequences", "ep", "etp", "recompute")
        passes = [self._of_rows.passes(edges, *key, looped=self._is_looped(zero)) for zero, *key in keys]
        return stage_sums(passes, edges)[which]

    def _is_looped(self, zero: int) -> bool:
        """Whether a library launches the products of experts one by one: Transformer Engine, which torchtitan does not
        take.
        """
        return self._one_by_one and zero == 1

    def exchanges(self, splits: Splits, edges: Edges) -> Values:
        """Seconds of exchanges forward, backward and where they run again, then of all on each level's busiest port,
        [splits, 3 + levels, stages].
        """
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "ep", "etp", "recompute", "exchange")
        found = []
        for tp, cp, sequences, ep, etp, recompute, way in keys:
            busy_s = self._of_rows.busy_s(tp, cp, sequences, ep, etp, way)
            row_bytes = self._of_rows.passes(edges, tp, cp, sequences, ep, etp, recompute).row_bytes
            found.append(np.concatenate([row_bytes * busy_s.max(axis=0), row_bytes.sum(axis=0) * busy_s]))
        return over_stages(np.stack(found), edges)[which]

    def told(self, splits: Splits, edges: Edges) -> Values:
        """Seconds in which the host waits for numbers of rows, forward, backward and in what runs again,
        [splits, 3, stages].
        """
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "ep", "etp", "recompute", "exchange")
        found = []
        for tp, cp, sequences, ep, etp, recompute, way in keys:
            times = self._of_rows.passes(edges, tp, cp, sequences, ep, etp, recompute).told
            found.append(times * self._of_rows.told_s(tp, cp, sequences, ep, etp, way))
        return over_stages(np.stack(found), edges)[which]

    def late(self, splits: Splits, edges: Edges) -> Values:
        """Seconds by which the host is late behind such waits: forward where a pass runs alone and where it runs beside
        a backward pass, and in what runs again; and how often it waits forward, [splits, 4, stages].
        """
        keys, which = splits.numbered("zero", "tp", "cp", "micro_batch_sequences", "ep", "etp", "recompute", "exchange")
        found = []
        for zero, tp, cp, sequences, ep, etp, recompute, way in keys:
            looped = self._is_looped(zero)
            passes = self._of_rows.passes(edges, tp, cp, sequences, ep, etp, recompute, looped=looped)
            sent_s = passes.late_bytes * self._of_rows.busy_s(tp, cp, sequences, ep, etp, way).max(axis=0)
            found.append(_late(passes, sent_s) * self._of_rows.tells(way))
        return over_stages(np.stack(found), edges)[which]

    def slots(self, splits: Splits) -> Column:
        """Experts that a rank holds, copies counted; 0 without experts."""
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "ep")
        return np.array([self._of_rows.slots(*key) for key in keys], np.int64)[which]

    def exchange_bytes(self, splits: Splits) -> Values:
        """Buffers that the exchange of rows keeps on a rank."""
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "ep", "exchange")
        return np.array([self._of_rows.buffer_bytes(*key) for key in keys])[which]

    def add_ends(self, splits: Splits, forward: Values, backward: Values) -> None:
        """Add the embedding and the images on the first stage, and the loss on the last."""
        keys, which = splits.numbered("tp", "cp", "micro_batch_sequences")
        ends = [self._of_tokens.ends(*key) for key in keys]
        for times, direction in ((forward, 0), (backward, 1)):
            times[:, :, 0] += np.stack([end.embedding[direction] for end in ends])[which]
            times[:, :, -1] += np.stack([end.loss[direction] for end in ends])[which]
        if self._images is not None:
            keys, which = splits.numbered("dp_replicate", "dp_shard", "micro_batch_sequences")
            passes = np.array([self._images.least_s(*key) for key in keys])[which]
            forward[:, COMPUTE, 0] += passes[:, 0]
            backward[:, COMPUTE, 0] += passes[:, 1]


def _late(passes: Passes, sent_s: Amounts) -> Amounts:
    """What `late` tells, [4, layers], of *passes* whose rows take *sent_s* to come.

    A forward pass that waits may run beside the backward pass of any layer: the host is late as for the one for which
    that matters least. Where a backward pass waits as well, it may be none.
    """
    told = passes.told > 0
    alone, again = (np.maximum(passes.late[number] - sent_s, 0.0) * told[2 * number] for number in range(2))
    least = passes.late[2][told[0]].min(initial=np.inf)
    beside = np.where(told[0] & (not told[2].any()), max(0.0, least), 0.0)
    return np.stack([alone, beside, again, passes.told[0]])
