import numpy as np
import pytest
from small_jobs import Small

from simulator.documents import InvalidDocument
from simulator.engine.simulation import Part, Simulation
from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.forecast.simulate import simulate
from simulator.planner.plan import prepare
from simulator.program.flops import model_flops
from simulator.program.training_step import TrainingStep

EXPERTS = ("parallel.ep=8", "routing.synthetic={sigma: 0.5}")
DOMAINS = (*EXPERTS, "training.sequences={domains: 4}")
LENGTHS = (*EXPERTS, "training.sequences={lengths: [512, 2048, 1024]}")
RAGGED = ("parallel.ep=8", "routing.workload=W4_source_ragged")
MOVING = (*EXPERTS, "routing.drift={spread: 0.5, persistence: 0.5}", "routing.drift_between=micro_batches")
FOUR, MANY = "training.global_batch_sequences=64", "training.global_batch_sequences=512"
IMAGES = "training.images={height: 256, width: 256, per_sequence: [0, 0, 16, 0, 4]}"
SEEING = ("parallel.ep=8", IMAGES, "training.sequences={lengths: [2048, 1536, 2048]}")


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [("mixture", DOMAINS), ("mixture", LENGTHS), ("mixture", RAGGED), ("mixture", MOVING), ("seeing-mixture", SEEING)],
)
def test_folded_ranks_are_the_ranks_run_apart(small: Small, kind: str, overrides: tuple[str, ...]) -> None:
    folded, whole = (forecast(*small(kind, *overrides, FOUR), fold=fold).summary for fold in (True, False))
    assert folded["step_time_s"]["p50"] == whole["step_time_s"]["p50"]
    assert folded["memory"]["hbm"]["peak_bytes"] == whole["memory"]["hbm"]["peak_bytes"]
    assert folded["time"] == pytest.approx(whole["time"])


@pytest.mark.parametrize("overrides", [DOMAINS, LENGTHS, (*MOVING, "training.recompute=full")])
@pytest.mark.parametrize("count", [32, 35])
def test_whole_turns_extrapolate_to_the_full_run(small: Small, overrides: tuple[str, ...], count: int) -> None:
    job = assemble_job(*small("mixture", *overrides, MANY))
    lowering = TrainingStep(job)
    assert lowering.unlike == 8
    step = simulate(lowering, count, behaviours=job.folding.behaviours)
    (full,) = Simulation(Part(lowering.programs(count)[0].tasks, job.folding.behaviours)).run()
    assert step.more % 8 == 0
    assert step.more > 0
    # Turns count as equally long when they are so to 1e-5.
    assert step.step_ns == pytest.approx(full.step_ns, rel=2e-5)


def test_micro_batches_without_end_cost_no_more_events(small: Small) -> None:
    job = assemble_job(*small("mixture", *DOMAINS, MANY))
    few, many = (simulate(TrainingStep(job), n, behaviours=job.folding.behaviours) for n in (32, 32_768))
    assert few.events == many.events
    assert many.step_ns == few.step_ns + (32_768 - 32) * few.period_ns


def test_a_filled_pipeline_grows_by_whole_turns(small: Small) -> None:
    job = assemble_job(*small("mixture", *DOMAINS, "parallel.pp=2", "parallel.dp_shard=8", MANY))
    lowering = TrainingStep(job)
    step = simulate(lowering, 75, behaviours=job.folding.behaviours)
    parts = [Part(program.tasks, job.folding.behaviours) for program in lowering.programs(75)]
    assert step.more > 0
    full_ns = max(recording.step_ns for recording in Simulation(*parts).run())
    assert step.step_ns == pytest.approx(full_ns, rel=3e-5)


def test_alike_sequences_are_one_micro_batch_again(small: Small) -> None:
    plain = forecast(*small("mixture", *EXPERTS, FOUR)).summary
    usual = forecast(*small("mixture", *EXPERTS, FOUR, "training.sequences={lengths: [2048]}")).summary
    assert plain["routing"]["unlike_micro_batches"] == 1
    assert usual["routing"]["unlike_micro_batches"] == 4
    for key in ("step_time_s", "memory", "time", "tokens_per_s", "model_flops_utilization"):
        assert usual[key] == pytest.approx(plain[key]) if isinstance(plain[key], float) else usual[key] == plain[key]


def test_unlike_micro_batches_are_no_more_tasks(small: Small) -> None:
    plain, unlike = (forecast(*small("mixture", *o, FOUR)).summary["engine"] for o in (EXPERTS, DOMAINS))
    assert plain["tasks"] == unlike["tasks"]
    assert plain["classes"] == unlike["classes"]


def test_ranks_compute_hold_and_send_as_many_tokens_as_they_bring(small: Small) -> None:
    job = assemble_job(*small("mixture", *RAGGED, "training.recompute=full"))
    (batch,) = job.micro_batches
    # Evenly spaced from a quarter to seven quarters of 2048, on eight ranks: 512 and seven times 438.86 more.
    assert sorted(tokens for (tokens,) in batch.lengths) == [512, 951, 1390, 1828, 2268, 2706, 3145, 3584]
    program = TrainingStep(job).programs(1)[0]
    own = np.array([tokens for (tokens,) in batch.lengths])[job.mesh.expert_rank()[job.folding.representative]]
    kept = next(a for task in program.tasks for a in task.allocates if a.key == "0 layer 1.input")
    assert np.array_equal(kept.bytes, own * 1024 * 2)
    load = program.loads[0]
    assert load.own_rows == pytest.approx(own * 2)
    # Destinations are even, sources are not.
    assert set(load.total_rows.tolist()) == {8 * 2048 * 2 // 8}
    ffn = next(task for task in program.tasks if task.name == "router" and task.phase == "forward")
    assert (np.diff(np.asarray(ffn.duration_ns)[np.argsort(own)]) >= 0).all()


def test_uneven_sources_cost_time_and_even_ones_do_not(small: Small) -> None:
    batch = ("training.micro_batch_sequences=4", "training.global_batch_sequences=64")
    long = ("training.sequence_length=8192", "training.recompute=full", *batch)
    even, ragged = (
        forecast(*small("mixture", "parallel.ep=8", f"routing.workload={name}", *long)).summary
        for name in ("W0_balanced", "W4_source_ragged")
    )
    assert ragged["routing"]["source_max_over_mean"] == pytest.approx(1.75, abs=1e-3)
    assert 1.2 < ragged["step_time_s"]["p50"] / even["step_time_s"]["p50"] < 1.8
    assert ragged["memory"]["hbm"]["peak_bytes"] > even["memory"]["hbm"]["peak_bytes"]
    assert ragged["time"]["imbalance_s"] > even["time"]["imbalance_s"]


def test_tokens_are_counted_as_they_are(small: Small) -> None:
    scenario, folder = small("mixture", *LENGTHS, FOUR)
    job, summary = assemble_job(scenario, folder), forecast(scenario, folder).summary
    # 32 sequences of an expert-parallel group's four micro-batches: eleven, eleven and ten of the three lengths.
    mean = (11 * 512 + 11 * 2048 + 10 * 1024) / 32
    assert job.mean_tokens == mean
    assert summary["tokens_per_s"] == pytest.approx(64 * mean / summary["step_time_s"]["p50"])
    single = [
        model_flops(assemble_job(*small("mixture", *EXPERTS, f"training.sequence_length={n}")))
        for n in (512, 2048, 1024)
    ]
    assert model_flops(job) == pytest.approx(np.average(single, weights=[11, 11, 10]))


def test_sampling_evens_images_and_lengths_over_ranks(small: Small) -> None:
    # As they come, one of eight ranks gets all images, and every second one short sequences.
    images = "training.images={height: 256, width: 256, per_sequence: [0, 0, 0, 0, 0, 0, 0, 32]}"
    lengths = "training.sequences={lengths: [8192, 4096]}"
    batch = ("training.micro_batch_sequences=8", "training.global_batch_sequences=512")
    long = ("parallel.ep=8", images, "training.sequence_length=8192", lengths, *batch)
    plain, sampled = (
        forecast(*small("seeing-mixture", *long, *more)).summary
        for more in ((), ("routing.policy={name: data_sampling}",))
    )
    assert sampled["images"]["per_rank_mean"] == plain["images"]["per_rank_mean"] == 32
    # Four of the 32 sequences with images on every rank, and all of them in the same micro-batches.
    assert (plain["images"]["rank_max_over_mean"], sampled["images"]["rank_max_over_mean"]) == (8.0, 1.0)
    assert plain["routing"]["source_max_over_mean"] == pytest.approx(4 / 3)
    assert sampled["routing"]["source_max_over_mean"] == 1.0
    assert sampled["step_time_s"]["p50"] < 0.96 * plain["step_time_s"]["p50"]


def test_scheduling_brings_tokens_for_the_same_experts_together(small: Small) -> None:
    many = (*DOMAINS, "training.micro_batch_sequences=2", "training.global_batch_sequences=128")
    plain, together = (
        forecast(*small("mixture", *many, *more)).summary["routing"]
        for more in ((), ("routing.policy={name: micro_batch_scheduling}",))
    )
    assert plain["unlike_micro_batches"] == together["unlike_micro_batches"] == 4
    assert together["expert_max_over_mean"] > 1.2 * plain["expert_max_over_mean"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("training.sequences={}",), "tells nothing apart"),
        (("training.sequences={spread: 1}",), "with one domain"),
        (("training.sequences={lengths: [4096]}",), r"found 4096, longer than sequence_length\(2048\)"),
        ((*LENGTHS, "parallel.tp=2", "parallel.dp_shard=8"), "found 2, whose ranks share sequences"),
        ((*LENGTHS, "parallel.pp=2", "parallel.dp_shard=8"), "found 2, whose stages hand over as much"),
        ((*LENGTHS, "training.document_length=512"), "cuts all sequences alike"),
        ((*LENGTHS, "training.exchange=hierarchical"), "known of ranks that send as much"),
        ((*RAGGED, "parallel.tp=2", "parallel.dp_shard=8"), "and sources are ragged"),
        ((*RAGGED, "training.sequences={domains: 2}"), "beside a workload, which has tokens of its own"),
    ],
)
def test_what_does_not_go_together_is_said(small: Small, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidDocument, match=message):
        small("mixture", *overrides)


def test_without_experts_sequences_are_not_told_apart(small: Small) -> None:
    with pytest.raises(Refused, match="llama has no routed experts"):
        forecast(*small("dense", "training.sequences={lengths: [512]}"))


def test_the_planner_says_that_its_bounds_do_not_know_unlike_micro_batches(small: Small) -> None:
    with pytest.raises(Refused, match=r"leave out training\.sequences"):
        prepare(*small("mixture", *DOMAINS, FOUR))
