import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.forecast.assembly import assemble_job
from simulator.forecast.forecast import forecast
from simulator.forecast.memory import remember
from simulator.forecast.peaks import first_step


def test_the_first_step_lacks_the_moments_until_its_update(small: Small) -> None:
    read = small("dense", "training.micro_batch_sequences=1")
    program = lower(read)
    (moments,) = program.born
    later = account(program.tasks, [*program.resident, moments], 1)["hbm"]
    first = first_step(program, later)
    # The peak lies in the backward pass, where moments are all that differs.
    assert later.peak_task(0) < program.birth
    assert later.peak_bytes[0] - first.peak_bytes[0] == moments.bytes
    assert first.left_bytes[0] == moments.bytes


def test_a_peak_says_who_reaches_it_when_and_with_what(small: Small) -> None:
    hbm = forecast(*small("dense", "training.execution=eager")).summary["memory"]["hbm"]
    (peak,) = hbm["peaks"]
    assert (peak["rank"], peak["ranks"], peak["stage"]) == (0, 16, 0)
    assert peak["peak_bytes"] == hbm["peak_bytes"] > peak["first_step_peak_bytes"] == hbm["first_step_peak_bytes"]
    assert (peak["phase"], peak["micro_batch"], peak["owner"]) == ("backward", 0, "saved activations")


def test_every_stage_and_behaviour_has_its_peak(small: Small) -> None:
    read = small("dense", "parallel={dp_shard: 8, pp: 2}", "training.global_batch_sequences=32")
    job = assemble_job(*read)
    from simulator.program.training_step import TrainingStep

    memory = remember(TrainingStep(job).programs(4), job.cluster, job.folding)
    assert sorted((p.rank, p.ranks, p.stage) for p in memory.peaks) == [(0, 8, 0), (8, 8, 1)]
    assert [p.peak_bytes for p in memory.peaks] == sorted((p.peak_bytes for p in memory.peaks), reverse=True)
    assert memory.peaks[0].stage == memory.stage


def test_the_busiest_expert_rank_has_the_highest_peak(small: Small) -> None:
    hbm = forecast(*small("mixture", "parallel.ep=8", "routing.synthetic.sigma=1")).summary["memory"]["hbm"]
    assert sum(peak["ranks"] for peak in hbm["peaks"]) == 16
    assert hbm["peaks"][0]["peak_bytes"] > hbm["peaks"][-1]["peak_bytes"]
    assert hbm["peaks"][0]["layer"] in range(4)
    assert hbm["peak_bytes"] == pytest.approx(hbm["peaks"][0]["peak_bytes"])
