import numpy as np
import pytest
from small_jobs import Small

from simulator.engine.simulation import Part, Simulation
from simulator.engine.task import Collective, Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.attribution import Attribution, attribute
from simulator.forecast.simulate import simulate
from simulator.program.training_step import TrainingStep


def compute(duration: int | list[int], *deps: int, host: int = 0, micro_batch: int = 0) -> Task:
    ns = duration if isinstance(duration, int) else np.array(duration)
    return Task("work", "compute", "gemm", ns, deps=deps, host_ns=host, micro_batch=micro_batch, grade="measured")


def transfer(kind: str, duration: int, groups: list[int], *deps: int) -> Task:
    collective = Collective("ep" if kind == "all_to_all" else "dp_shard", np.array(groups))
    return Task("move", "net", kind, duration, deps=deps, collective=collective, micro_batch=0, grade="scaled")


def attributed(*program: Task, behaviours: int = 1, micro_batches: int = 1) -> Attribution:
    (recording,) = Simulation(Part(program, behaviours)).run()
    return attribute(program, recording, micro_batches, recording.step_ns)


def nonzero(attribution: Attribution, behaviour: int = 0) -> dict[str, int]:
    totals = {part: int(slots.sum(axis=0)[behaviour]) for part, slots in attribution.parts.items()}
    return {part: total for part, total in totals.items() if total}


def test_waiting_for_late_ranks_is_imbalance_and_waiting_for_bytes_is_exposed() -> None:
    # The early rank comes at 10 and the late one at 30; the exchange runs from 30 to 50.
    found = attributed(compute([10, 30]), transfer("all_to_all", 20, [0, 0], 0), compute(5, 1), behaviours=2)
    assert nonzero(found, 0) == {"compute_s": 15, "imbalance_s": 20, "exposed_all_to_all_s": 20}
    assert nonzero(found, 1) == {"compute_s": 35, "exposed_all_to_all_s": 20}


def test_only_what_compute_does_not_hide_is_exposed() -> None:
    found = attributed(transfer("all_gather", 25, [0]), compute(10), compute(5, 0))
    assert nonzero(found) == {"compute_s": 15, "exposed_fsdp_s": 15}


def test_waiting_for_the_host_is_launch_bound() -> None:
    assert nonzero(attributed(compute(1, host=10), compute(1, host=10))) == {"compute_s": 2, "launch_bound_s": 19}


def test_the_last_of_several_causes_counts() -> None:
    # The gather ends at 25, the exchange at 40: the wait from 10 to 40 is the exchange's.
    wait = Task("move", "other", "all_to_all", 40, collective=Collective("ep", np.array([0])), micro_batch=0)
    found = attributed(transfer("all_gather", 25, [0]), wait, compute(10), compute(5, 0, 1))
    assert nonzero(found) == {"compute_s": 15, "exposed_all_to_all_s": 30}


def test_what_an_early_rank_waits_at_the_end_is_imbalance() -> None:
    found = attributed(compute([10, 30]), behaviours=2)
    assert nonzero(found, 0) == {"compute_s": 10, "imbalance_s": 20}


def test_time_is_kept_by_micro_batch_and_by_price() -> None:
    found = attributed(
        compute(3), compute(4, micro_batch=1), transfer("reduce_scatter", 9, [0]), compute(5, 2, micro_batch=-1),
        micro_batches=2,
    )  # fmt: skip
    assert found.parts["compute_s"][:, 0].tolist() == [3, 4, 5]
    assert found.parts["exposed_fsdp_s"][:, 0].tolist() == [0, 0, 2]
    assert {key: int(slots.sum()) for key, slots in found.priced.items() if slots.any()} == {
        ("gemm", "measured"): 12,
        ("reduce_scatter", "scaled"): 2,
    }


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("dense", ()),
        ("dense", ("training.execution=eager", "training.sequence_length=128")),
        ("mixture", ("parallel.ep=8", "routing.synthetic.sigma=1")),
        ("mixture", ("parallel.ep=4", "routing.synthetic.sigma=1.5", "training.recompute=full")),
        ("mixture", ("parallel.ep=8", "parallel.dp_replicate=2", "parallel.dp_shard=8", "routing.synthetic.sigma=1")),
    ],
)
def test_the_parts_of_every_rank_add_up_to_the_step(small: Small, kind: str, overrides: tuple[str, ...]) -> None:
    job = assemble_job(*small(kind, *overrides))
    step = simulate(TrainingStep(job), 3, behaviours=job.folding.behaviours)
    found = attribute(step.programs[0].tasks, step.recordings[0], step.simulated, step.simulated_ns)
    total = sum(slots.sum(axis=0) for slots in found.parts.values())
    assert np.array_equal(total, np.full(job.folding.behaviours, step.recordings[0].step_ns))
    assert all((slots >= 0).all() for slots in found.parts.values())
