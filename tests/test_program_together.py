"""Micro-batches that go through a layer together: one gather and one reduction for all of them."""

import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.engine.task import Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.forecast.simulate import simulate
from simulator.planner.plan import prepare
from simulator.program.training_step import TrainingStep

LAYERS = 4
MIB = 2**20
FOUR = ("training.fsdp.micro_batches_per_gather=4", "training.global_batch_sequences=64")
FULL = "training.recompute=full"


def named(tasks: list[Task], name: str, phase: str) -> list[int]:
    return [task.layer for task in tasks if task.name == name and task.phase == phase]


def moved(tasks: list[Task], kind: str) -> float:
    return sum(float(np.max(task.collective.wire_bytes)) for task in tasks if task.kind == kind and task.collective)


def test_a_layer_is_gathered_once_and_runs_for_each(small: Small) -> None:
    one, four = lower(small("dense")), lower(small("dense", *FOUR))
    assert named(four.tasks, "attention", "forward") == [layer for layer in range(LAYERS) for _ in range(4)]
    assert named(four.tasks, "attention", "backward") == [layer for layer in reversed(range(LAYERS)) for _ in range(4)]
    for kind in ("all_gather", "reduce_scatter"):
        assert moved(four.tasks, kind) == moved(one.tasks, kind) > 0


def test_what_is_kept_is_kept_of_all_of_them(small: Small) -> None:
    def inputs(*more: str) -> list[float]:
        program = lower(small("dense", FULL, *more))
        ledgers = account(program.tasks, [*program.resident, *program.born], 1)
        assert abs(ledgers["hbm"].left_bytes).max() == 0
        taken = [item for task in program.tasks if task.phase == "forward" for item in task.allocates]
        return [float(item.bytes) for item in taken if item.key.endswith(".input")]

    # 2048 tokens x 1024 channels x 2 bytes of each layer and micro-batch.
    assert inputs() == [4 * MIB] * LAYERS
    assert inputs(*FOUR) == [4 * MIB] * LAYERS * 4


def test_recomputed_tensors_are_those_of_one_of_them(small: Small) -> None:
    def held(*more: str) -> float:
        program = lower(small("dense", FULL, *more))
        again = [item for task in program.tasks if task.phase == "recompute" for item in task.allocates]
        sizes, alive, most = {item.key: float(item.bytes) for item in again}, 0.0, 0.0
        for task in program.tasks:
            alive += sum(sizes.get(item.key, 0.0) for item in task.allocates)
            most = max(most, alive)
            alive -= sum(sizes.get(key, 0.0) for key in task.releases)
        return most

    assert held(*FOUR) == held() > 0


def test_gradients_add_up_in_the_opposite_order(small: Small) -> None:
    tasks = lower(small("dense", *FOUR)).tasks
    # The last one makes the gradients, the three before it add theirs: in four layers, the head and the embedding.
    assert (
        named(tasks, "add gradients", "backward") == [-1] * 3 + [n for n in (3, 2, 1, 0) for _ in range(3)] + [-1] * 3
    )
    keys = [item.key for task in tasks if task.phase == "forward" for item in task.allocates if ".saved." in item.key]
    freed = [key for task in tasks for key in task.releases if key in keys and "layer" in key]
    assert [key.split(" ")[0] for key in dict.fromkeys(key.split(".saved")[0] for key in freed)] == list(
        "3210"
    ) * LAYERS


def test_with_adapters_alone_next_to_nothing_is_added(small: Small) -> None:
    tasks = lower(small("dense", *FOUR, "training.lora={rank: 8, targets: [attention]}")).tasks
    assert named(tasks, "add gradients", "backward") == [n for n in (3, 2, 1, 0) for _ in range(3)]


def test_unlike_micro_batches_come_in_turn(small: Small) -> None:
    unlike = (
        "parallel={dp_shard: 16, ep: 16}",
        "training.sequences={domains: 4}",
        "training.global_batch_sequences=96",
    )

    def routed(together: int, count: int) -> tuple[int, list[list[float]]]:
        job = assemble_job(*small("mixture", *unlike, f"training.fsdp.micro_batches_per_gather={together}"))
        lowering = TrainingStep(job)
        tasks = [t for t in lowering.programs(count)[0].tasks if t.name == "dispatch" and t.phase == "forward"]
        return lowering.unlike, [[moved([t], "all_to_all") for t in tasks if t.layer == n] for n in range(LAYERS)]

    (alone, each), (paired, two) = routed(1, 6), routed(2, 3)
    assert (alone, paired) == (6, 3)
    assert each == two
    assert len(set(each[0])) > 1


def test_a_step_counts_all_of_its_tokens(small: Small) -> None:
    more = ("training.global_batch_sequences=512", FULL)
    one, four = (forecast(*small("dense", *more, *together)).summary for together in ((), FOUR[:1]))
    assert one["engine"]["micro_batches"] == four["engine"]["micro_batches"] == 32
    assert one["tokens_per_s"] * one["step_time_s"]["p50"] == pytest.approx(512 * 2048)
    assert four["tokens_per_s"] * four["step_time_s"]["p50"] == pytest.approx(512 * 2048)
    gathered = [summary["traffic"]["all_gather_bytes_per_micro_batch"] for summary in (one, four)]
    assert gathered[0] == pytest.approx(4 * gathered[1])
    assert four["step_time_s"]["p50"] < one["step_time_s"]["p50"]


def test_what_is_extrapolated_is_what_would_have_been_simulated(small: Small) -> None:
    job = assemble_job(*small("dense", *FOUR))
    lowering = TrainingStep(job)
    some, all_of_it = (simulate(lowering, count, behaviours=1) for count in (8, 4))
    assert some.simulated == all_of_it.simulated == 4
    assert some.step_ns == pytest.approx(2 * all_of_it.step_ns, rel=0.05)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("training.zero=1", "training.global_batch_sequences=64"), "zero 1 gathers no layer.*allowed: 1, or zero 3"),
        (("parallel={dp_shard: 8, pp: 2}",), "pipeline stages keep what they have gathered"),
        (("training.global_batch_sequences=96",), "does not divide the 6 micro-batches of a step; nearest: 3"),
    ],
)
def test_micro_batches_that_share_no_gather_are_refused(small: Small, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refused, match=message):
        assemble_job(*small("dense", *FOUR, *overrides))


def test_bounds_of_splits_do_not_know_them(small: Small) -> None:
    with pytest.raises(Refused, match="bounds of splits count a gather for every micro-batch"):
        prepare(*small("dense", *FOUR))
