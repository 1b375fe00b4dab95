import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from small_jobs import Small

from simulator.documents import InvalidDocument
from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.program.job import Job
from simulator.routing.placement import moves

LAW = ("parallel.ep=8", "routing.synthetic={sigma: 1}", "routing.drift={spread: 0.5, persistence: 0.5}")
EPLB = "routing.policy={{name: eplb, replan_every: {}}}"


def rows(job: Job) -> np.ndarray:
    assert job.routing is not None
    return job.routing.rows


def recorded(folder: Path) -> str:
    """As Megatron-Core records: in step s every token picks expert s, and one of the others in turn."""
    with (folder / "moving.jsonl").open("w") as file:
        for step, layer in product(range(4), range(4)):
            picks = [[step, other] for other in range(16) if other != step]
            line = {"step": step, "stage": "pre_dispatch", "block": "decoder", "layer": layer, "rank": 0}
            file.write(json.dumps(line | {"num_tokens": 15, "topk": 2, "top_indices": picks}) + "\n")
    return "routing.trace=moving.jsonl"


def test_a_step_later_other_experts_are_hot_and_as_hot(small: Small) -> None:
    first, later, again = (rows(assemble_job(*small("mixture", *LAW, f"routing.step={step}"))) for step in (0, 5, 5))
    assert np.array_equal(later, again)
    assert (first != later).any()
    assert np.sort(first.ravel()).tolist() == pytest.approx(np.sort(later.ravel()).tolist(), abs=1)


def test_recorded_windows_are_steps_and_recur(small: Small) -> None:
    asked = ("parallel.ep=8", recorded(small("mixture")[1]), "routing.drift=recorded")
    jobs = [assemble_job(*small("mixture", *asked, f"routing.step={step}")) for step in range(5)]
    hottest = [int(rows(job)[0, 0].sum(axis=-1).argmax()) for job in jobs]
    # Two experts on a rank.
    assert hottest == [0, 0, 1, 1, 0]


def test_recorded_windows_are_micro_batches_where_asked(small: Small) -> None:
    folder = small("mixture")[1]
    more = ("routing.drift=recorded", "routing.drift_between=micro_batches", "training.global_batch_sequences=32")
    for step in (0, 1):
        job = assemble_job(*small("mixture", "parallel.ep=16", recorded(folder), *more, f"routing.step={step}"))
        assert rows(job).shape[0] == 2
        assert [int(batch[0, :, 0].argmax()) for batch in rows(job)] == [2 * step, 2 * step + 1]


def test_a_plan_ages_until_the_next_one(small: Small) -> None:
    def busiest(step: int, every: int) -> float:
        read = small("mixture", *LAW, EPLB.format(every), f"routing.step={step}")
        return float(forecast(*read).summary["routing"]["rank_max_over_mean"])

    fresh = forecast(*small("mixture", *LAW, "routing.policy={name: eplb}", "routing.step=7")).summary
    assert fresh["routing"]["rank_max_over_mean"] < busiest(7, 7) < busiest(7, 8)
    # Both were planned from step 6.
    assert busiest(7, 7) == busiest(7, 1)


def test_a_new_plan_costs_the_moves_from_the_one_before(small: Small) -> None:
    found = {}
    for step in (3, 4, 5):
        job = assemble_job(*small("mixture", *LAW, EPLB.format(4), f"routing.step={step}"))
        assert job.routing is not None
        assert job.routing.before is not None
        summary = forecast(*small("mixture", *LAW, EPLB.format(4), f"routing.step={step}")).summary["routing"]
        found[step] = summary["experts_moved"], summary["rebalance_s"]
        assert moves(job.routing.before, job.routing.placement, 8).total == summary["experts_moved"]
    assert found[3] == found[5] == (0, 0.0)
    assert found[4][0] > 0
    assert found[4][1] > 0


def test_moments_beyond_reach_are_refused(small: Small) -> None:
    with pytest.raises(Refused, match="2001 moves of the drift lie before it; allowed: up to 2000"):
        assemble_job(*small("mixture", *LAW, "routing.step=2001"))


def test_one_window_is_no_recorded_drift(small: Small) -> None:
    with pytest.raises(Refused, match="the trace has one window of steps"):
        assemble_job(*small("mixture", "routing.trace=olmoe-c4", "routing.drift=recorded"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("routing.step=1",), "found a step without a workload or drift"),
        (("routing.drift=recorded",), "found recorded, but no trace"),
        ((*LAW[2:], "routing.workload=W6_rotating_hotspot"), "beside a workload, which has steps of its own"),
        (("routing.drift_between=micro_batches",), "without a drift"),
        ((*LAW, "routing.drift_between=micro_batches", "training.sequences={domains: 2}"), "which make them unlike"),
        ((EPLB.format(4),), "popularity stands still"),
        ((*LAW, "routing.policy={name: eplb, replan_every: 2, planned_on: olmoe-c4}"), "which fixes the plan"),
    ],
)
def test_what_does_not_go_together_is_said(small: Small, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidDocument, match=message):
        small("mixture", *overrides)


@pytest.mark.parametrize("asked", ["replan_every: 2", "planned_on: olmoe-c4"])
def test_a_policy_without_a_plan_has_none_to_age(small: Small, asked: str) -> None:
    with pytest.raises(Refused, match="contiguous makes no plan"):
        assemble_job(*small("mixture", *LAW, f"routing.policy={{name: contiguous, {asked}}}"))
