"""The scenario's own layout among the candidates: where the search starts, so that no plan is slower than it.

Layouts that are no candidates are left out: ZeRO 0 and 2, pieces of sequences that are not tried, and what does not go
on when nodes are lost. Those may be faster than the plan, which says so.
"""

from __future__ import annotations

from simulator.forecast.scenario import Scenario
from simulator.model.recompute import NOTHING, WHOLE
from simulator.planner.splits import EVEN, NO_OVERLAP, OVERLAP, OVERLAP_WEIGHTS, OWN, SCHEDULES, WAYS, Split, Splits
from simulator.program.job import Job


def with_own_layout(splits: Splits, scenario: Scenario, job: Job) -> tuple[Splits, int | None]:
    """*splits*, and which of them is the layout of *scenario*, whose `dp_shard` is what its cards leave; None where
    that is none of them.

    It keeps the shares of its stages beside those that are found to be best.
    """
    own = _own_split(scenario, job)
    if own is None:
        return splits, None
    number = splits.like(own)
    if number is None or (splits.split(number).sharing == EVEN and not own.stage_layers):
        return splits, number
    return splits.with_one_more(own), len(splits)


def _own_split(scenario: Scenario, job: Job) -> Split | None:
    """The layout of *scenario*; None where its other degrees do not divide its cards."""
    training, parallel = scenario.training, scenario.parallel
    others = parallel.dp_replicate * parallel.tp * parallel.cp * parallel.pp
    dp_shard, left = divmod(scenario.cluster.accelerators, others)
    if left or training.pipeline_schedule not in SCHEDULES:
        return None
    delayed = OVERLAP_WEIGHTS if training.delay_weight_gradients else OVERLAP
    return Split(
        dp_replicate=parallel.dp_replicate,
        dp_shard=dp_shard,
        tp=parallel.tp,
        cp=parallel.cp,
        pp=parallel.pp,
        ep=parallel.ep,
        etp=parallel.etp,
        zero=training.zero,
        recompute={NOTHING: 0, WHOLE: 1}.get(job.recompute, OWN),
        micro_batch_sequences=training.micro_batch_sequences,
        schedule=SCHEDULES.index(training.pipeline_schedule),
        virtual_pipeline=parallel.virtual_pipeline,
        overlap=delayed if training.overlap_exchanges else NO_OVERLAP,
        exchange=WAYS.index(training.exchange),
        stage_layers=_uneven(parallel.stage_layers or ()),
    )


def _uneven(stage_layers: tuple[int, ...]) -> tuple[int, ...]:
    """*stage_layers*; none where they are as even as can be, which candidates say with none."""
    each, more = divmod(sum(stage_layers), max(1, len(stage_layers)))
    even = tuple(each + (number < more) for number in range(len(stage_layers)))
    return () if stage_layers == even else stage_layers
