from collections.abc import Callable

import pytest
from small_jobs import Small

from simulator.engine.simulation import Part, Simulation
from simulator.forecast.assembly import assemble_job
from simulator.forecast.simulate import SimulatedStep, simulate
from simulator.program.training_step import TrainingStep

JOBS = [
    ("dense", ()),
    ("dense", ("training.execution=eager", "training.sequence_length=128")),
    ("mixture", ("parallel.ep=8", "routing.synthetic.sigma=1")),
    ("mixture", ("parallel.ep=4", "training.recompute=full", "training.fsdp.prefetch=0")),
]


@pytest.fixture(params=JOBS, ids=[f"{kind} {' '.join(overrides)}" for kind, overrides in JOBS])
def run(request: pytest.FixtureRequest, small: Small) -> Callable[..., SimulatedStep]:
    kind, overrides = request.param
    job = assemble_job(*small(kind, *overrides))
    lowering = TrainingStep(job)
    return lambda count: simulate(lowering, count, behaviours=job.folding.behaviours)


def test_thirty_two_micro_batches_take_what_the_full_run_takes(run: Callable[..., SimulatedStep]) -> None:
    step = run(32)
    assert (step.simulated, step.more) == (4, 28)
    assert step.step_ns == run(4).step_ns + 28 * step.period_ns


@pytest.mark.parametrize(("kind", "overrides"), JOBS)
def test_the_extrapolation_is_the_full_run_to_the_nanosecond(
    small: Small, kind: str, overrides: tuple[str, ...]
) -> None:
    job = assemble_job(*small(kind, *overrides))
    lowering = TrainingStep(job)
    (full,) = Simulation(Part(lowering.programs(32)[0].tasks, job.folding.behaviours)).run()
    assert simulate(lowering, 32, behaviours=job.folding.behaviours).step_ns == full.step_ns


def test_more_micro_batches_cost_no_more_events(run: Callable[..., SimulatedStep]) -> None:
    few, many = run(32), run(32_768)
    assert many.events == few.events
    assert many.step_ns == few.step_ns + (32_768 - 32) * few.period_ns


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_few_micro_batches_are_all_simulated(small: Small, count: int) -> None:
    job = assemble_job(*small("dense"))
    step = simulate(TrainingStep(job), count, behaviours=1)
    assert (step.simulated, step.more, step.typical[-1]) == (count, 0, max(0, count - 2))
    assert step.step_ns == step.recordings[0].step_ns


def test_progress_ends_with_all_where_no_second_run_is_needed(small: Small) -> None:
    # One card has no transfers that slow its kernels.
    job, heard = assemble_job(*small("dense", "cluster.accelerators=1", "parallel.dp_shard=1")), list[float]()
    simulate(TrainingStep(job), 1, behaviours=job.folding.behaviours, progress=heard.append)
    assert heard == [1.0]
