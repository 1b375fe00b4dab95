from dataclasses import replace

import numpy as np
import pytest
from small_jobs import Small

from simulator.engine.interference import lost_ns
from simulator.engine.simulation import Part, Simulation
from simulator.engine.task import Collective, Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.simulate import simulate
from simulator.program.training_step import TrainingStep


def compute(duration: int | list[int], *deps: int) -> Task:
    ns = duration if isinstance(duration, int) else np.array(duration)
    return Task("work", "compute", "gemm", ns, deps=deps)


def transfer(
    duration: int, *deps: int, stream: str = "net", groups: tuple[int, ...] = (0,), taken: float | list[float] = 0.2
) -> Task:
    share = taken if isinstance(taken, float) else np.array(taken)
    collective = Collective("all", np.array(groups), compute_taken=share)
    return Task("move", stream, "all_gather", duration, deps=deps, collective=collective)


def durations(*program: Task, behaviours: int = 1) -> list[list[int]]:
    """In the second run, by task and behaviour."""
    (recording,) = Simulation(Part(program, behaviours)).run()
    (again,) = Simulation(Part(program, behaviours)).run([lost_ns(program, recording)])
    return (again.end_ns - again.begin_ns).tolist()


def test_a_kernel_beside_a_transfer_makes_up_for_what_that_takes() -> None:
    # 60 of its 100 ns are beside the transfer; at 0.8 of the speed they take 60 / 0.8 = 75.
    assert durations(compute(100), transfer(60)) == [[115], [60]]


def test_a_kernel_within_a_transfer_takes_as_much_longer_as_is_taken() -> None:
    assert durations(compute(80), transfer(500)) == [[100], [500]]
    assert durations(compute(80), transfer(500, taken=0.5)) == [[160], [500]]


def test_kernels_share_the_transfer_beside_them() -> None:
    # 0-40, 40-100 and 100-120; the transfer ends at 60.
    assert durations(compute(40), compute(60), compute(20), transfer(60)) == [[50], [65], [20], [60]]


def test_transfers_at_the_same_time_leave_the_product_of_what_each_leaves() -> None:
    # 40 ns at 0.8 * 0.5 of the speed, then 20 at 0.8: 40 * (1 / 0.4 - 1) + 20 * (1 / 0.8 - 1) = 65 more.
    assert durations(compute(100), transfer(60), transfer(40, stream="other", taken=0.5))[0] == [165]


def test_transfers_one_after_the_other() -> None:
    # Without a gap and with one: 60 + 20, and 20 + 20 ns beside.
    assert durations(compute(100), transfer(60), transfer(20))[0] == [120]
    late = Task("wait", "copy", "copy", 50)
    assert durations(compute(100), transfer(20), late, transfer(20, 2))[0] == [110]


def test_a_transfer_that_waits_for_others_takes_nothing_meanwhile() -> None:
    # The second rank comes at 70; bytes move from then to 90.
    program = (compute([10, 70]), transfer(20, 0, groups=(0, 0)), compute([100, 100]))
    assert durations(*program, behaviours=2) == [[10, 70], [20, 20], [105, 105]]


def test_each_behaviour_is_stretched_by_its_own_transfers() -> None:
    program = (compute([20, 100]), transfer(60, groups=(0, 1)))
    assert durations(*program, behaviours=2) == [[25, 115], [60, 60]]


def test_behaviours_lose_what_their_own_groups_take() -> None:
    program = (compute([100, 100]), transfer(60, groups=(0, 1), taken=[0.2, 0.0]))
    assert durations(*program, behaviours=2)[0] == [115, 100]


@pytest.mark.parametrize(
    "program", [(compute(100), transfer(60, taken=0.0)), (compute(100),), (transfer(60),), ()], ids=len
)
def test_nothing_is_lost_where_nothing_is_taken_or_nothing_moves(program: tuple[Task, ...]) -> None:
    (recording,) = Simulation(Part(program, 1)).run()
    assert lost_ns(program, recording) is None


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("dense", ()),
        ("dense", ("parallel={pp: 2, tp: 2, dp_shard: 4}",)),
        ("dense", ("training.zero=1", "training.recompute=full")),
        ("mixture", ("parallel.ep=8", "routing.synthetic.sigma=1")),
    ],
)
def test_the_more_is_taken_the_longer_the_step(small: Small, kind: str, overrides: tuple[str, ...]) -> None:
    job = assemble_job(*small(kind, "training.sequence_length=8192", *overrides))
    links = job.cluster.node.scale_up.model_copy(update={"channels": None})
    steps = []
    for taken in (0.0, 0.1, 0.2, 0.4):
        share = links.compute_taken.model_copy(update={"value": taken})
        node = job.cluster.node.model_copy(update={"scale_up": links.model_copy(update={"compute_taken": share})})
        lowering = TrainingStep(replace(job, cluster=replace(job.cluster, node=node)))
        steps.append(simulate(lowering, 2, behaviours=job.folding.behaviours).step_ns)
    assert steps == sorted(steps)
    # Four kinds of transfers are at most under way at once.
    assert steps[-1] <= steps[0] / (1 - 0.4) ** 4
