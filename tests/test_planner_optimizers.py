"""Bounds of the planner below the forecast for optimizers other than AdamW; that one is in test_planner_bounds.py."""

import numpy as np
import pytest
from small_jobs import Small

from simulator.forecast.assembly import TENSOR_BY_TENSOR, assemble_job
from simulator.forecast.fitting import changed
from simulator.forecast.forecast import forecast
from simulator.planner.bounds import Bounds
from simulator.planner.expert_rows import ExpertRows
from simulator.planner.mixed_prices import MixedPrices
from simulator.planner.plan import prepare
from simulator.planner.split_prices import SplitPrices
from simulator.planner.splits import enumerate_splits


@pytest.mark.parametrize("kind", ["dense", "mixture"])
@pytest.mark.parametrize("name", ["adamw_8bit", "muon", "sgd"])
def test_no_bound_exceeds_its_forecast(small: Small, kind: str, name: str) -> None:
    scenario, folder = small(kind, f"training.optimizer={{name: {name}, master_weights: false}}")
    job = assemble_job(scenario, folder)
    zeros = (3,) if name in TENSOR_BY_TENSOR else (3, 1)
    splits = enumerate_splits(
        job.architecture, job.cluster, sequence_length=2048, global_batch_sequences=16, zeros=zeros
    )
    experts = ExpertRows(scenario, folder, job.architecture, job.cluster) if job.routing is not None else None
    prices = SplitPrices(job, experts)
    bound = Bounds(job, MixedPrices(prices, prices, prices), 16).of(splits)
    for number in np.random.default_rng(0).choice(len(splits), 3, replace=False):
        summary = forecast(changed(scenario, splits.split(int(number)).settings()), folder).summary
        assert bound.step_s[number] <= summary["step_time_s"]["p50"]
        assert bound.peak_bytes[number] <= summary["memory"]["hbm"]["peak_bytes"]
    assert set(splits["zero"]) == set(zeros)


def test_plans_keep_to_what_goes_with_the_settings(small: Small) -> None:
    def found(*overrides: str) -> set[int]:
        return {int(zero) for zero in prepare(*small("dense", *overrides))[0].splits["zero"]}

    assert found() == {1, 3}
    assert found("training.optimizer.name=adamw_8bit") == found("training.fsdp.reshard_after_forward=8") == {3}
    # A split says itself how it shards: settings of another way are no hindrance.
    assert found("training.zero=2", "training.deepspeed.overlap_comm=true") == {1, 3}


def test_no_bound_exceeds_a_forecast_that_gathers_within_the_node(small: Small) -> None:
    scenario, folder = small("dense", "training.fsdp.reshard_after_forward=2")
    search, case = prepare(scenario, folder)
    tried = [n for n in range(len(search.splits)) if search.splits.split(n).dp_shard in (4, 8, 16)][:4]
    while search.bounds.sharpen(np.array(tried)):
        pass
    for number in tried:
        summary = forecast(case(number).scenario, folder).summary
        assert search.bound.step_s[number] <= summary["step_time_s"]["p50"]
        assert search.bound.peak_bytes[number] <= summary["memory"]["hbm"]["peak_bytes"]
    assert tried
