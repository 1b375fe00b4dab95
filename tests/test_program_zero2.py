import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.engine.task import Task
from simulator.program.stage import StageProgram

PARAMETERS = 4 * (4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024) + 2 * 2048 * 1024 + 1024
SMALL_BUCKETS = "training.deepspeed.reduce_bucket_elements=10000000"


def zero2(small: Small, *overrides: str, micro_batches: int = 1) -> StageProgram:
    return lower(small("dense", "training.zero=2", *overrides), micro_batches)


def moved(program: StageProgram) -> list[Task]:
    return [task for task in program.tasks if task.collective is not None]


def sent(tasks: list[Task]) -> float:
    return sum(float(np.max(task.collective.wire_bytes)) for task in tasks)  # type: ignore[union-attr]


def test_parameters_are_whole_and_the_optimizer_is_shared(small: Small) -> None:
    program = zero2(small)
    kept = [item for item in (*program.resident, *program.born) if item.key != "resident.matmul workspaces"]
    held = {item.key: item.bytes for item in kept}
    assert held == {
        "resident.parameters": 2 * PARAMETERS,
        "resident.master weights": 4 * PARAMETERS / 16,
        "resident.moments": 8 * PARAMETERS / 16,
    }


def test_gradients_are_all_reduced_and_parameters_gathered(small: Small) -> None:
    *reductions, gather = moved(zero2(small))
    assert {task.kind for task in reductions} == {"all_reduce"}
    assert sent(reductions) == pytest.approx(2 * 2 * PARAMETERS * 15 / 16)
    assert (gather.kind, sent([gather])) == ("all_gather", pytest.approx(2 * PARAMETERS * 15 / 16))


def test_every_micro_batch_reduces_and_adds_its_partition(small: Small) -> None:
    program = zero2(small, "training.global_batch_sequences=32", micro_batches=2)
    assert sent(moved(program)[:-1]) == pytest.approx(2 * 2 * 2 * PARAMETERS * 15 / 16)
    assert [task.micro_batch for task in program.tasks if task.name == "add partitions"] == [1]


def test_a_small_bucket_is_summed_before_the_next_gradient_does_not_fit(small: Small) -> None:
    one, several = moved(zero2(small)), moved(zero2(small, SMALL_BUCKETS))
    assert (len(one), len(several) > 3) == (2, True)
    largest = max(float(task.collective.wire_bytes[0]) for task in several[:-1])  # type: ignore[union-attr,index]
    assert largest <= 2 * 2 * 10_000_000 * 15 / 16


def test_a_gradient_larger_than_the_bucket_is_summed_where_it_is(small: Small) -> None:
    program = zero2(small, "training.deepspeed.reduce_bucket_elements=3000000")
    # Three matrices of 4 Mi elements in each of four layers go by themselves.
    large = [t for t in moved(program) if t.kind == "all_reduce" and sent([t]) == 2 * 2 * 4 * 2**20 * 15 / 16]
    assert len(large) == 12


def test_without_overlap_the_backward_pass_waits_for_each_sum(small: Small) -> None:
    waits = {}
    for overlap in (False, True):
        tasks = zero2(small, SMALL_BUCKETS, f"training.deepspeed.overlap_comm={str(overlap).lower()}").tasks
        first = next(n for n, task in enumerate(tasks) if task.kind == "all_reduce")
        after = next(n for n, task in enumerate(tasks) if n > first and task.stream == "compute")
        waits[overlap] = first in tasks[after].deps
    assert waits == {False: True, True: False}


def test_the_update_holds_the_share_of_gradients_in_fp32(small: Small) -> None:
    program = zero2(small)
    update = [task for task in program.tasks if task.phase == "optimizer"]
    taken = {a.key: a.bytes for task in update for a in task.allocates}
    assert taken["zero2.flat partition"] == 2 * PARAMETERS / 16
    assert taken["zero2.wide partition"] == 4 * PARAMETERS / 16
    ledger = account(program.tasks, program.resident, 1)["hbm"]
    assert ledger.left_bytes[0] == pytest.approx(0)


def test_with_the_optimizer_on_the_host_gradients_leave_in_fp32_and_weights_come_back(small: Small) -> None:
    program = zero2(small, "training.offload.optimizer=1")
    owned = PARAMETERS / 16
    copies = {kind: [task for task in moved(program) if task.kind == kind] for kind in ("copy_out", "copy_in")}
    assert {kind: sent(tasks) for kind, tasks in copies.items()} == {
        "copy_out": pytest.approx(4 * owned),
        "copy_in": pytest.approx(4 * owned),
    }
    passes = {task.name: sent([task]) for task in moved(program) if task.stream == "cores"}
    assert passes == {"scale gradients on cpu": pytest.approx(8 * owned), "cpu AdamW": pytest.approx(28 * owned)}
    assert [task.phase for task in copies["copy_out"]] == ["backward"]
    assert "optimizer" not in {task.kind for task in program.tasks}


def test_a_card_whose_optimizer_is_on_the_host_holds_its_parameters_and_a_buffer(small: Small) -> None:
    program = zero2(small, "training.offload.optimizer=1")
    ledgers = account(program.tasks, [*program.resident, *program.born], 1)
    assert all(abs(ledger.left_bytes).max() < 1 for ledger in ledgers.values())
    held = [item for item in (*program.resident, *program.born) if item.key != "resident.matmul workspaces"]
    # The largest tensor has 4 Mi elements.
    assert {item.key: item.bytes for item in held if item.tier == "hbm"} == {
        "resident.parameters": 2 * PARAMETERS,
        "resident.buffer of a gradient": 2**23,
    }
    # 17.8 MB each of weights and gradients are pinned as 2^25 bytes.
    assert {item.key: item.bytes for item in held if item.tier == "ddr"} == {
        "resident.master weights on host": 2**25,
        "resident.gradients on host": 2**25 + 2**23,
        "resident.moments on host": 8 * PARAMETERS / 16,
    }
    assert not any(item.key.startswith("zero2.partition") for task in program.tasks for item in task.allocates)
