"""Bounds of the planner below the forecast for every optimizer and way of sharding."""

import numpy as np
import pytest
from small_jobs import Small

from simulator.forecast.assembly import TENSOR_BY_TENSOR, assemble_job
from simulator.forecast.fitting import changed
from simulator.forecast.forecast import forecast
from simulator.planner.bounds import Bounds
from simulator.planner.expert_rows import ExpertRows
from simulator.planner.splits import enumerate_splits


@pytest.mark.parametrize("kind", ["dense", "mixture"])
@pytest.mark.parametrize("name", ["adamw", "adamw_8bit", "muon", "sgd"])
def test_no_bound_exceeds_its_forecast(small: Small, kind: str, name: str) -> None:
    scenario, folder = small(kind, f"training.optimizer={{name: {name}, master_weights: false}}")
    job = assemble_job(scenario, folder)
    zeros = (3,) if name in TENSOR_BY_TENSOR else (3, 1)
    splits = enumerate_splits(
        job.architecture, job.cluster, sequence_length=2048, global_batch_sequences=16, zeros=zeros
    )
    experts = ExpertRows(scenario, folder, job.architecture, job.cluster) if job.routing is not None else None
    bound = Bounds(job, experts, 16).of(splits)
    for number in np.random.default_rng(0).choice(len(splits), 6, replace=False):
        summary = forecast(changed(scenario, splits.split(int(number)).settings()), folder).summary
        assert bound.step_s[number] <= summary["step_time_s"]["p50"]
        assert bound.peak_bytes[number] <= summary["memory"]["hbm"]["peak_bytes"]
    assert set(splits["zero"]) == set(zeros)
