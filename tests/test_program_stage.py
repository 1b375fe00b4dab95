import numpy as np
import pytest
from small_jobs import DEVICE_BOUND, Small

from simulator.engine.task import Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.attribution import attribute
from simulator.forecast.forecast import forecast
from simulator.forecast.simulate import simulate
from simulator.program.stage import StageProgram
from simulator.program.training_step import TrainingStep

HALVES = "parallel={pp: 2, dp_shard: 8}"
QUARTERS = "parallel={pp: 4, dp_shard: 4}"


def stages(small: Small, *overrides: str, kind: str = "dense", micro_batches: int = 1) -> tuple[StageProgram, ...]:
    return TrainingStep(assemble_job(*small(kind, *overrides))).programs(micro_batches)


def layers(program: StageProgram) -> list[int]:
    return sorted({task.layer for task in program.tasks} - {-1})


def handed(program: StageProgram) -> list[Task]:
    return [task for task in program.tasks if task.kind == "pipeline"]


@pytest.mark.parametrize(
    ("pp", "shares"),
    [(1, [[0, 1, 2, 3]]), (2, [[0, 1], [2, 3]]), (4, [[0], [1], [2], [3]])],
)
def test_stages_share_the_layers_in_order(small: Small, pp: int, shares: list[list[int]]) -> None:
    found = stages(small, f"parallel={{pp: {pp}, dp_shard: {16 // pp}}}")
    assert [layers(program) for program in found] == shares
    assert [program.first_rank for program in found] == [stage * 16 // pp for stage in range(pp)]


def test_the_first_stages_have_one_more_where_layers_do_not_divide(small: Small) -> None:
    found = stages(
        small, "parallel={pp: 3, dp_shard: 8}", "cluster.accelerators=24", "training.global_batch_sequences=8"
    )
    assert [layers(program) for program in found] == [[0, 1], [2], [3]]


def test_the_ends_of_the_model_are_at_the_ends_of_the_pipeline(small: Small) -> None:
    names = [{task.name for task in program.tasks} for program in stages(small, QUARTERS)]
    assert [("embedding" in found, "cross_entropy" in found) for found in names] == [
        (True, False), (False, False), (False, False), (False, True),
    ]  # fmt: skip
    roots = [program.layout.root.groups for program in stages(small, QUARTERS)]
    assert [sum(group.elements for group in groups) for groups in roots] == [2048 * 1024, 0, 0, 2048 * 1024 + 1024]


def test_every_boundary_is_crossed_once_in_either_direction(small: Small) -> None:
    found = stages(small, QUARTERS, micro_batches=2)
    assert [len(handed(program)) for program in found] == [4, 8, 8, 4]
    meetings = [{task.collective.meeting for task in handed(p) if task.collective} for p in found]
    for boundary in range(3):
        both = meetings[boundary] & meetings[boundary + 1]
        assert both == {f"{way} {m} {boundary}" for way in ("forward", "backward") for m in (0, 1)}


def test_a_rank_sends_the_tokens_that_it_holds_and_a_receiver_sends_nothing(small: Small) -> None:
    def bytes_of(*overrides: str) -> dict[str, float]:
        return {
            task.name: float(np.max(task.collective.wire_bytes))
            for task in handed(stages(small, *overrides)[0])
            if task.collective is not None
        }

    whole = 2048 * 1024 * 2
    assert bytes_of(HALVES) == {"send forward": whole, "receive backward": 0}
    assert bytes_of("parallel={pp: 2, tp: 2, cp: 2, dp_shard: 2}") == {"send forward": whole / 4, "receive backward": 0}


def test_compute_waits_for_what_it_receives_and_not_for_what_it_sends(small: Small) -> None:
    for stage, program in enumerate(stages(small, HALVES, micro_batches=2)):
        awaited = {dep for task in program.tasks if task.stream == "compute" for dep in task.deps}
        for task in handed(program):
            assert (program.tasks.index(task) in awaited) == task.name.startswith("receive")
            assert bool(task.deps) == task.name.startswith("send")
        assert {task.stream for task in handed(program)} == {
            0: {"pp_send_forward", "pp_receive_backward"}, 1: {"pp_receive_forward", "pp_send_backward"},
        }[stage]  # fmt: skip


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("dense", (QUARTERS,)),
        ("dense", (QUARTERS, "training.zero=1")),
        ("dense", ("parallel={pp: 2, tp: 2, cp: 2, dp_shard: 2}", "training.recompute=full")),
        ("mixture", ("parallel={pp: 2, tp: 2, dp_shard: 4, ep: 2, etp: 2}", "routing.synthetic.sigma=1")),
    ],
)
def test_the_parts_of_time_add_up_to_the_step_for_every_stage(
    small: Small, kind: str, overrides: tuple[str, ...], schedule: str
) -> None:
    job = assemble_job(*small(kind, *overrides, *DEVICE_BOUND, f"training.pipeline_schedule={schedule}"))
    step = simulate(TrainingStep(job), 5, behaviours=job.folding.behaviours)
    assert step.simulated == 5
    for program, recording in zip(step.programs, step.recordings, strict=True):
        found = attribute(program.tasks, recording, step.simulated, step.simulated_ns)
        total = sum(slots.sum(axis=0) for slots in found.parts.values())
        assert np.array_equal(total, np.full(job.folding.behaviours, step.simulated_ns))
        assert all((slots >= 0).all() for slots in found.parts.values())
        assert found.parts["pipeline_bubble_s"].sum() > 0


@pytest.mark.parametrize("micro_batches", [3, 60])
def test_the_parts_of_the_summary_add_up_as_well(small: Small, micro_batches: int) -> None:
    found = forecast(*small("dense", QUARTERS, f"training.global_batch_sequences={4 * micro_batches}")).summary
    assert sum(found["time"].values()) == pytest.approx(found["step_time_s"]["p50"], rel=1e-9)
    assert all(seconds >= 0 for seconds in found["time"].values())


def test_what_balanced_ranks_wait_for_after_the_update_is_the_gather_of_parameters(small: Small) -> None:
    found = forecast(*small("dense", "training.zero=1")).summary
    assert found["time"]["imbalance_s"] == 0
    gather = 2 * (4 * (4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024) + 2 * 2048 * 1024 + 1024) * 15 / 16
    assert found["time"]["exposed_fsdp_s"] > gather / 8 / 50e9


def test_traffic_is_that_of_one_rank_and_not_of_a_rank_of_every_stage(small: Small) -> None:
    def gathered(pp: int) -> float:
        found = forecast(*small("dense", f"parallel={{pp: {pp}, dp_shard: 4, dp_replicate: {4 // pp}}}")).summary
        return float(found["traffic"]["all_gather_bytes_per_micro_batch"])

    layer, head = 4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024, 2048 * 1024
    assert gathered(1) == (2 * 2 * 4 * layer + 2 * (2 * head + 1024)) * 3 / 4
    # Beneath stages a backward pass gathers its layer, which stays for the next forward pass; the root is never freed.
    assert gathered(4) == 2 * layer * 3 / 4


def test_experts_are_numbered_through_the_stages(small: Small) -> None:
    found = stages(small, "parallel={pp: 2, dp_shard: 8, ep: 8}", "routing.synthetic.sigma=1", kind="mixture")
    whole = stages(small, "parallel={dp_shard: 16, ep: 8}", "routing.synthetic.sigma=1", kind="mixture")[0]
    assert [sorted(program.loads) for program in found] == [[0, 1], [2, 3]]
    for program in found:
        for layer, load in program.loads.items():
            assert np.array_equal(load.rows, whole.loads[layer].rows)


def test_memory_is_told_of_the_stage_that_holds_most(small: Small) -> None:
    found = forecast(*small("dense", QUARTERS, "training.global_batch_sequences=64"))
    (curve,) = found.memory
    # The first stage holds the activations of four micro-batches, and the embedding.
    assert curve.rank.rank == 0
    assert np.sum(list(curve.bytes_by_kind.values()), axis=0).max() == found.summary["memory"]["hbm"]["peak_bytes"]
