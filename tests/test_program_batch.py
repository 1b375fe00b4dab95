"""How Megatron-LM's micro-batches reach a tensor-parallel group; 2,048 tokens, 16 H200, four layers."""

import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.task import Task
from simulator.forecast.assembly import assemble_job
from simulator.program.stage import StageProgram
from simulator.program.training_step import TrainingStep

HALVES = ("training.zero=1", "parallel={dp_shard: 8, tp: 2}")
TOKENS = 2048


def sent(program: StageProgram) -> list[tuple[str, int, float]]:
    """Name, micro-batch and bytes of each broadcast."""
    found = [task for task in program.tasks if task.name.startswith("broadcast ")]
    return [(t.name.removeprefix("broadcast "), t.micro_batch, float(np.max(t.collective.wire_bytes))) for t in found]


def after(program: StageProgram, task: Task) -> list[Task]:
    return program.tasks[program.tasks.index(task) + 1 :]


def test_each_micro_batch_is_broadcast_tensor_by_tensor(small: Small) -> None:
    one = [("tokens", 8.0), ("labels", 8.0), ("loss mask", 4.0), ("positions", 8.0)]
    wanted = [(name, number, size * TOKENS) for number in (0, 1) for name, size in one]
    assert sent(lower(small("dense", *HALVES), 2)) == wanted


def test_the_first_kernel_waits_for_the_last_of_them(small: Small) -> None:
    tasks = lower(small("dense", *HALVES), 1).tasks
    last = next(n for n, task in enumerate(tasks) if task.name == "broadcast positions")
    first = next(task for task in tasks if task.stream == "compute")
    assert last in first.deps
    assert not any(task.blocks_host for task in tasks[: last + 1])


def test_whole_sequences_are_sent_before_context_parallelism_cuts_them(small: Small) -> None:
    program = lower(small("dense", "training.zero=1", "parallel={dp_shard: 4, cp: 2, tp: 2}"), 1)
    assert sent(program)[0] == ("tokens", 0, 8.0 * TOKENS)


def test_a_stage_gets_what_its_layers_want(small: Small) -> None:
    halves = small("dense", "training.zero=1", "parallel={dp_shard: 2, tp: 2, pp: 4}")
    stages = TrainingStep(assemble_job(*halves)).programs(4)
    names = [[name for name, number, _ in sent(stage) if number == 0] for stage in stages]
    assert names == [["tokens", "positions"], [], [], ["labels", "loss mask"]]


def test_a_mask_of_all_pairs_of_tokens_is_sent_and_held_until_the_forward_pass_ends(small: Small) -> None:
    program = lower(small("dense", *HALVES, "training.megatron={attention_mask: true}"), 1)
    assert ("attention mask", 0, float(TOKENS**2)) in sent(program)
    key = "0 attention mask"
    taken = next(t for t in program.tasks if any(a.key == key for a in t.allocates))
    freed = next(t for t in program.tasks if key in t.releases)
    assert [a.bytes for a in taken.allocates if a.key == key] == [float(TOKENS**2)]
    assert (taken.phase, freed.phase) == ("forward", "forward")
    assert not any(task.phase == "forward" and task.stream == "compute" for task in after(program, freed))


def test_a_mask_is_held_where_no_group_shares_a_batch(small: Small) -> None:
    program = lower(small("dense", "training.zero=1", "training.megatron={attention_mask: true}"), 1)
    assert not sent(program)
    assert any(a.key == "0 attention mask" for task in program.tasks for a in task.allocates)


@pytest.mark.parametrize(
    "overrides",
    [("training.zero=3", HALVES[1]), (*HALVES, "training.megatron={broadcast_batch: false}"), ("training.zero=1",)],
)
def test_elsewhere_every_rank_reads_its_own(small: Small, overrides: tuple[str, ...]) -> None:
    assert not sent(lower(small("dense", *overrides), 2))
