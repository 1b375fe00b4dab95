import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from small_jobs import DENSE, Small

from simulator.engine.interference import lost_ns
from simulator.engine.ledger import account
from simulator.engine.simulation import Part, Simulation
from simulator.engine.task import Collective, Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.fitting import memory_of
from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario
from simulator.forecast.simulate import SimulatedStep, simulate
from simulator.program.job import Job
from simulator.program.pipeline import Pipeline
from simulator.program.schedules import Pass, enough, in_flight, schedules
from simulator.program.training_step import TrainingStep

FORWARD_NS, BACKWARD_NS = 100, 230
NAMES = ("1f1b", "gpipe")
WHOLE: tuple[Literal["backward", "forward"], ...] = ("backward", "forward")
PASSES = ("forward", "backward", "inputs", "weights")


def spelled(passes: list[Pass]) -> str:
    """F and B with their micro-batches; a dash for each chunk further on."""
    return " ".join(f"{one.direction[0].upper()}{one.micro_batch}{chr(39) * one.chunk}" for one in passes)


def stage_tasks(passes: list[Pass], stage: int, pipeline: Pipeline, pass_ns: dict[str, int]) -> list[Task]:
    """The passes as tasks of equal chunks whose hand-overs take no time; paired ones are one task."""
    tasks: list[Task] = []

    def hand_over(one: Pass, way: str, *deps: int) -> None:
        forward = one.direction == "forward"
        upstream = forward == (way == "receive")
        other = (pipeline.before if upstream else pipeline.behind)(stage, one.chunk)
        if other is not None and one.direction != "weights":
            direction = "forward" if forward else "backward"
            name = f"{direction} {one.micro_batch} {pipeline.virtual(stage, one.chunk) - upstream}"
            meeting = Collective("pp", np.array([0]), meeting=name, parts=(stage, other))
            stream = f"{way} {direction} {one.chunk if pipeline.mirrored else ''}"
            tasks.append(Task(way, stream, "pipeline", 0, deps=deps, collective=meeting))

    waiting: list[Pass] = []
    for one in passes:
        waiting.append(one)
        if one.paired:
            continue
        first = len(tasks)
        for each in waiting:
            hand_over(each, "receive")
        duration = sum(pass_ns[each.direction] for each in waiting)
        tasks.append(Task(one.direction, "compute", "gemm", duration, deps=tuple(range(first, len(tasks)))))
        position = len(tasks) - 1
        for each in waiting:
            hand_over(each, "send", position)
        waiting = []
    return tasks


def step_ns(name: str, pipeline: Pipeline, micro_batches: int, **pass_ns: int) -> int:
    """Time of a step of equal chunks."""
    stages = range(pipeline.stages)
    times = {"forward": FORWARD_NS, "backward": BACKWARD_NS} | pass_ns
    passes = [schedules()[name](stage, pipeline.stages, micro_batches, pipeline.chunks) for stage in stages]
    parts = [Part(stage_tasks(passes[stage], stage, pipeline, times), 1) for stage in stages]
    return max(recording.step_ns for recording in Simulation(*parts).run())


def test_one_forward_one_backward_in_turn() -> None:
    order = schedules()["1f1b"]
    assert spelled(order(0, 3, 5, 1)) == "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"
    assert spelled(order(1, 3, 5, 1)) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"
    assert spelled(order(2, 3, 5, 1)) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"
    assert spelled(order(0, 4, 2, 1)) == "F0 F1 B0 B1"


def test_gpipe_runs_all_forwards_first_and_backs_out_of_the_last() -> None:
    assert spelled(schedules()["gpipe"](1, 3, 3, 1)) == "F0 F1 F2 B2 B1 B0"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 8])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_every_pass_runs_once_and_forward_first(name: str, stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        passes = schedules()[name](stage, stages, micro_batches, 1)
        assert sorted(passes) == [Pass(way, m) for way in WHOLE for m in range(micro_batches)]
        assert all(passes.index(Pass("forward", m)) < passes.index(Pass("backward", m)) for m in range(micro_batches))


def test_what_a_stage_holds_at_once() -> None:
    for stage in range(4):
        assert in_flight(schedules()["1f1b"](stage, 4, 9, 1)) == (4 - stage,)
        assert in_flight(schedules()["gpipe"](stage, 4, 9, 1)) == (9,)
    assert in_flight(schedules()["1f1b"](0, 4, 2, 1)) == (2,)


def test_interleaved_stages_take_their_chunks_in_turn() -> None:
    order = schedules()["interleaved"]
    assert spelled(order(0, 2, 4, 2)) == "F0 F1 F0' F1' F2 B0' F3 B1' F2' B0 F3' B1 B2' B3' B2 B3"
    assert spelled(order(1, 2, 4, 2)) == "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3"
    assert spelled(order(0, 4, 4, 2)) == "F0 F1 F2 F3 F0' F1' F2' F3' B0' B1' B2' B3' B0 B1 B2 B3"


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(2, 2, 2), (2, 3, 6), (4, 2, 4), (4, 4, 12)])
def test_every_chunk_has_every_pass_once(stages: int, chunks: int, micro_batches: int) -> None:
    every = [Pass(way, m, c) for way in WHOLE for m in range(micro_batches) for c in range(chunks)]
    for stage in range(stages):
        assert sorted(schedules()["interleaved"](stage, stages, micro_batches, chunks)) == every


def test_interleaved_stages_hold_a_share_more_than_1f1b() -> None:
    """Of p (1 + (p - 1) / (p v)) micro-batches, Korthikanti et al. (2022), in passes of chunks on the first stage."""
    for stages, chunks in ((4, 2), (4, 4), (8, 2)):
        held = in_flight(schedules()["interleaved"](0, stages, 4 * stages, chunks))
        assert sum(held) == stages * chunks + stages - 1


@pytest.mark.parametrize(
    ("stages", "chunks", "micro_batches"), [(2, 2, 2), (2, 3, 6), (4, 2, 4), (4, 4, 12), (8, 2, 16)]
)
def test_interleaving_divides_the_bubble_by_the_chunks(stages: int, chunks: int, micro_batches: int) -> None:
    busy_ns = micro_batches * chunks * (FORWARD_NS + BACKWARD_NS)
    found_ns = step_ns("interleaved", Pipeline(stages, chunks), micro_batches)
    assert found_ns - busy_ns == (stages - 1) * (FORWARD_NS + BACKWARD_NS)
    assert (found_ns - busy_ns) / busy_ns == pytest.approx((stages - 1) / chunks / micro_batches)


def test_how_many_micro_batches_show_what_all_hold() -> None:
    assert [enough("1f1b", 4, count) for count in (1, 3, 4, 100)] == [1, 3, 4, 4]
    assert [enough("gpipe", 4, count) for count in (1, 3, 4, 100)] == [1, 3, 4, 100]
    assert [enough(name, 1, 5) for name in NAMES] == [1, 5]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 1), (2, 6), (4, 4), (4, 9), (8, 3)])
def test_equal_stages_take_as_long_as_their_micro_batches_and_the_way_through(
    name: str, stages: int, micro_batches: int
) -> None:
    found_ns = step_ns(name, Pipeline(stages), micro_batches)
    assert found_ns == (micro_batches + stages - 1) * (FORWARD_NS + BACKWARD_NS)
    bubble = 1 - micro_batches * (FORWARD_NS + BACKWARD_NS) / found_ns
    assert bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_zb_h1_puts_off_gradients_of_weights_for_longer_on_later_stages() -> None:
    order = schedules()["zb_h1"]
    assert spelled(order(0, 3, 4, 1)) == "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3"
    assert spelled(order(1, 3, 4, 1)) == "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3"
    assert spelled(order(2, 3, 4, 1)) == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"


@pytest.mark.parametrize("weights_ns", [50, 90, 100])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (4, 4), (4, 9), (8, 16)])
def test_zb_h1_leaves_a_bubble_without_twice_the_weights(stages: int, micro_batches: int, weights_ns: int) -> None:
    """(p - 1) (F + B - 2 W) where B has its W, which takes no longer than F (Qi et al., 2023)."""
    whole_ns = 130 + weights_ns
    found_ns = step_ns("zb_h1", Pipeline(stages), micro_batches, inputs=130, weights=weights_ns)
    assert found_ns - micro_batches * (FORWARD_NS + whole_ns) == (stages - 1) * (FORWARD_NS + whole_ns - 2 * weights_ns)


def test_dualpipe_of_four_stages() -> None:
    order = schedules()["dualpipe"]
    assert spelled(order(0, 4, 8, 2)) == ("F0 F2 F4 F1' I1' W1' F3' F6 B3' F5' B0 B5' F7' B2 B7' I4 W4 I6 W6")
    assert spelled(order(3, 4, 8, 2)) == ("F1' F3' F5' F0 I0 W0 F2 F7' B2 F4 B1' B4 F6 B3' B6 I5' W5' I7' W7'")


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (6, 14), (8, 16), (8, 20)])
def test_dualpipe_runs_every_pass_once_and_every_gradient_it_put_off(stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        passes = schedules()["dualpipe"](stage, stages, micro_batches, 2)
        runs = {way: sorted(one.micro_batch for one in passes if one.direction == way) for way in PASSES}
        assert runs["forward"] == sorted(runs["backward"] + runs["inputs"]) == list(range(micro_batches))
        assert runs["weights"] == runs["inputs"]
        assert all(one.chunk == one.micro_batch % 2 for one in passes)
        half = min(stage, stages - 1 - stage)
        assert sorted(in_flight(passes)) == [half + 1, stages - half]


@pytest.mark.parametrize("weights_ns", [50, 90, 100])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 18), (16, 32)])
def test_dualpipe_leaves_a_bubble_of_half_the_stages(stages: int, micro_batches: int, weights_ns: int) -> None:
    """(p / 2 - 1) (F&B + B - 3 W), table 2 of DeepSeek-V3, where F and B without W are equal as in its figure 5."""
    whole_ns = FORWARD_NS + weights_ns
    found_ns = step_ns(
        "dualpipe",
        Pipeline(stages, 2, mirrored=True),
        micro_batches,
        inputs=FORWARD_NS,
        weights=weights_ns,
        backward=whole_ns,
    )
    both_ns = FORWARD_NS + whole_ns
    assert found_ns - micro_batches * both_ns == (stages // 2 - 1) * (both_ns + whole_ns - 3 * weights_ns)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen layers and next to no vocabulary on eight accelerators of one node, in four stages of equal work."""
    folder = tmp_path_factory.mktemp("deep")
    (folder / "deep.json").write_text(json.dumps(DENSE | {"num_hidden_layers": 16, "vocab_size": 16}))
    (folder / "deep.yaml").write_text(
        "name: deep\nmodel: deep\ncluster: {node: hgx-h200, fabric: single-node, accelerators: 4}\n"
        "parallel: {pp: 4}\n"
        "training: {sequence_length: 8192, global_batch_sequences: 1, optimizer: {name: sgd, master_weights: false}}\n"
    )
    return folder / "deep.yaml"


def run(path: Path, *overrides: str, micro_batches: int) -> SimulatedStep:
    job = assemble_job(*read_scenario(str(path), [f"training.global_batch_sequences={micro_batches}", *overrides]))
    return simulate(TrainingStep(job), micro_batches, behaviours=job.folding.behaviours)


@pytest.mark.parametrize("name", NAMES)
def test_a_lowered_pipeline_takes_that_and_its_sends(deep: Path, name: str) -> None:
    schedule = f"training.pipeline_schedule={name}"
    alone, eight = (run(deep, schedule, micro_batches=count) for count in (1, 8))
    program = alone.programs[1]
    pass_ns = sum(int(t.duration_ns) for t in program.tasks if t.stream == "compute" and t.micro_batch == 0)
    send_ns = max(int(np.max(t.duration_ns)) for t in program.tasks if t.kind == "pipeline")
    assert send_ns < 0.02 * pass_ns
    # A stage of embedding or loss works a little longer than one without.
    ends_ns = 0.02 * pass_ns
    update_ns = max(sum(int(t.duration_ns) for t in p.tasks if t.phase == "optimizer") for p in alone.programs)
    for step, count in ((alone, 1), (eight, 8)):
        rounds = count + 4 - 1
        assert rounds * pass_ns <= step.step_ns <= rounds * (pass_ns + 2 * send_ns + ends_ns) + update_ns


def test_activations_of_as_many_micro_batches_as_there_are_stages_to_the_end(deep: Path) -> None:
    def saved(name: str, micro_batches: int) -> list[int]:
        """Activations at each stage's peak, in micro-batches."""
        step = run(deep, f"training.pipeline_schedule={name}", micro_batches=micro_batches)
        held = [
            account(program.tasks, program.resident, 1)["hbm"].breakdown(0)["saved activations"]
            for program in step.programs
        ]
        one = run(deep, micro_batches=1).programs[1]
        each = account(one.tasks, one.resident, 1)["hbm"].breakdown(0)["saved activations"]
        return [round(bytes_ / each) for bytes_ in held]

    assert saved("1f1b", 6) == [4, 3, 2, 1]
    assert saved("gpipe", 6) == [6, 6, 6, 6]


def test_an_interleaved_pipeline_takes_less_time_and_more_memory(deep: Path) -> None:
    """Eight chunks of two layers: 4 (1 + 3 / 8) = 5.5 micro-batches of activations on the first stage, not 4."""

    def first_stage(*overrides: str) -> tuple[int, float]:
        step = run(deep, *overrides, micro_batches=8)
        program = step.programs[0]
        return step.step_ns, account(program.tasks, [], 1)["hbm"].breakdown(0)["saved activations"]

    plain_ns, plain_bytes = first_stage()
    step_ns, saved_bytes = first_stage("parallel.virtual_pipeline=2")
    # A bubble of 3 / 2 passes, not 3, on top of 8.
    assert step_ns / plain_ns == pytest.approx(9.5 / 11, abs=0.02)
    assert saved_bytes / plain_bytes == pytest.approx(5.5 / 4, abs=0.05)


def is_work(task: Task) -> bool:
    return task.stream == "compute" and task.micro_batch >= 0


def test_zero_bubble_pipelines_take_less_time(deep: Path) -> None:
    zero1 = "training.zero=1"
    plain, zero, dual = (
        run(deep, zero1, f"training.pipeline_schedule={name}", micro_batches=8)
        for name in ("1f1b", "zb_h1", "dualpipe")
    )
    for other in (zero, dual):
        mine, theirs = (
            sum(int(task.duration_ns) for program in step.programs for task in program.tasks if is_work(task))
            for step in (plain, other)
        )
        assert theirs == pytest.approx(mine, rel=0.03)
    assert plain.step_ns > zero.step_ns > dual.step_ns


def test_two_copies_of_parameters_and_gradients_and_one_of_states(deep: Path) -> None:
    overrides = ("training.zero=1", "training.optimizer={name: adamw}")
    plain, dual = (
        run(deep, *overrides, f"training.pipeline_schedule={name}", micro_batches=8) for name in ("1f1b", "dualpipe")
    )
    for kind, factor in (("parameters", 2.0), ("gradients", 2.0), ("optimizer", 1.0)):
        one, two = (
            sum(
                float(held.bytes)
                for program in step.programs
                for held in (*program.resident, *program.born)
                if held.kind == kind and "unread" not in held.key
            )
            for step in (plain, dual)
        )
        assert two == pytest.approx(factor * one)


def longest_ns(job: Job, micro_batches: int) -> int:
    """Of a step whose micro-batches are all simulated, compute beside transfers slowed as in a forecast."""
    parts = [Part(program.tasks, job.folding.behaviours) for program in TrainingStep(job).programs(micro_batches)]
    simulation = Simulation(*parts)
    slowed = [lost_ns(part.program, alone) for part, alone in zip(parts, simulation.run(), strict=True)]
    return max(recording.step_ns for recording in simulation.run(slowed))


def test_an_interleaved_pipeline_is_extrapolated_to_what_it_takes(deep: Path) -> None:
    interleaved = ("parallel.virtual_pipeline=2", "training.zero=1")
    step, whole = (run(deep, *interleaved, micro_batches=count) for count in (24, 12))
    assert (step.simulated, step.more) == (12, 12)
    job = assemble_job(*read_scenario(str(deep), ["training.global_batch_sequences=24", *interleaved]))
    assert step.step_ns == pytest.approx(longest_ns(job, 24), rel=1e-3)
    assert whole.step_ns < step.step_ns


def test_a_stage_may_have_no_layers(deep: Path) -> None:
    job = assemble_job(
        *read_scenario(str(deep), ["parallel.stage_layers=[5, 6, 5, 0]", "training.global_batch_sequences=4"])
    )
    assert [[layer.index for layer in job.layers_of(stage)] for stage in range(4)] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9, 10],
        [11, 12, 13, 14, 15],
        [],
    ]
    last = simulate(TrainingStep(job), 4, behaviours=1).programs[3]
    assert {task.name for task in last.tasks if task.stream == "compute" and task.phase == "forward"} >= {"lm_head"}
    assert {task.layer for task in last.tasks} == {-1}


def test_a_filled_pipeline_is_extrapolated_to_what_it_takes(small: Small) -> None:
    job = assemble_job(
        *small(
            "dense",
            "parallel={pp: 2, dp_shard: 8}",
            "training.sequence_length=8192",
            "training.micro_batch_sequences=4",
            "training.global_batch_sequences=768",
        )
    )
    step = simulate(TrainingStep(job), 24, behaviours=job.folding.behaviours)
    assert (step.simulated, step.more) == (6, 18)
    assert step.step_ns == pytest.approx(longest_ns(job, 24), rel=1e-3)


def test_gpipe_is_simulated_whole_since_it_holds_all_at_once(small: Small) -> None:
    def peak(*overrides: str) -> float:
        read = small("dense", "parallel={pp: 2, dp_shard: 8}", *overrides)
        found = forecast(*read)
        assert found.summary["memory"]["hbm"]["peak_bytes"] == memory_of(*read).summary()["hbm"]["peak_bytes"]
        return float(found.summary["memory"]["hbm"]["breakdown"]["saved activations"])

    few, many = (f"training.global_batch_sequences={8 * count}" for count in (5, 20))
    grown = peak(many, "training.pipeline_schedule=gpipe") / peak(few, "training.pipeline_schedule=gpipe")
    assert grown == pytest.approx(4, rel=0.05)
    assert peak(many) == peak(few)
