import numpy as np
from small_jobs import Small

from simulator.forecast.assembly import assemble_job
from simulator.forecast.simulate import SimulatedStep, simulate
from simulator.forecast.telling import telling_ranks, timeline
from simulator.forecast.timeline import ABSENT_NS
from simulator.program.job import Job
from simulator.program.training_step import TrainingStep

SKEWED = ("parallel.ep=8", "routing.synthetic.sigma=1")


def simulated(small: Small, kind: str, *overrides: str) -> tuple[Job, SimulatedStep]:
    job = assemble_job(*small(kind, *overrides))
    return job, simulate(TrainingStep(job), 1, behaviours=job.folding.behaviours)


def busy_ns(step: SimulatedStep, stage: int, behaviour: int) -> int:
    tasks, recording = step.programs[stage].tasks, step.recordings[stage]
    own = recording.end_ns[:, behaviour] - recording.start_ns[:, behaviour]
    return sum(int(ns) for task, ns in zip(tasks, own, strict=True) if task.stream == "compute")


def test_ranks_that_are_all_alike_are_told_by_one(small: Small) -> None:
    (only,) = telling_ranks(*simulated(small, "dense"))
    assert (only.rank.rank, only.rank.label) == (0, "every rank alike")


def test_the_hottest_and_the_coldest_compute_longest_and_shortest(small: Small) -> None:
    job, step = simulated(small, "mixture", *SKEWED)
    found = {one.rank.label: one for one in telling_ranks(job, step)}
    assert list(found) == ["median", "hottest", "coldest"]
    busy = [busy_ns(step, 0, behaviour) for behaviour in range(8)]
    assert busy[found["hottest"].behaviour] == max(busy)
    assert busy[found["coldest"].behaviour] == min(busy)
    assert busy[found["median"].behaviour] == sorted(busy)[4]
    for one in found.values():
        assert one.rank.rank == job.folding.representative[one.behaviour]


def test_ranks_of_a_pipeline_are_numbered_through_its_stages(small: Small) -> None:
    job, step = simulated(small, "dense", "parallel={pp: 4, dp_shard: 4}")
    found = {one.rank.label: one for one in telling_ranks(job, step)}
    # All ranks of a stage are alike.
    assert all(one.rank.rank == 4 * one.stage and one.behaviour == 0 for one in found.values())
    assert busy_ns(step, found["hottest"].stage, 0) > busy_ns(step, found["coldest"].stage, 0)


def test_a_column_holds_the_times_of_its_rank(small: Small) -> None:
    job, step = simulated(small, "mixture", *SKEWED)
    telling = telling_ranks(job, step)
    found = timeline(step, telling)
    behaviours = [one.behaviour for one in telling]
    assert np.array_equal(found.start_ns, step.recordings[0].begin_ns[:, behaviours])
    assert np.array_equal(found.end_ns, step.recordings[0].end_ns[:, behaviours])
    assert found.ranks == tuple(one.rank for one in telling)
    tasks = step.programs[0].tasks
    assert (len(found.name), found.name[7], found.layer[7]) == (len(tasks), tasks[7].name, tasks[7].layer)
    dispatch = found.name.index("dispatch")
    collective = tasks[dispatch].collective
    assert collective is not None
    assert found.wire_bytes[dispatch].tolist() == np.asarray(collective.wire_bytes)[behaviours].tolist()


def test_tasks_of_other_stages_have_no_time_and_no_bytes(small: Small) -> None:
    job, step = simulated(small, "dense", "parallel={pp: 4, dp_shard: 4}")
    first, *_, last = sorted(telling_ranks(job, step), key=lambda one: one.stage)
    assert first.stage < last.stage
    found = timeline(step, [first, last])
    sizes = [len(step.programs[stage].tasks) for stage in sorted({first.stage, last.stage})]
    assert len(found.name) == sum(sizes)
    for column, one in enumerate((first, last)):
        own = slice(0, sizes[0]) if one.stage == min(first.stage, last.stage) else slice(sizes[0], None)
        mask = np.ones(len(found.name), bool)
        mask[own] = False
        assert (found.start_ns[mask, column] == ABSENT_NS).all()
        assert (found.end_ns[mask, column] == ABSENT_NS).all()
        assert not found.wire_bytes[mask, column].any()
        assert (found.start_ns[own, column] >= 0).all()
