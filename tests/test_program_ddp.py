import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.engine.task import Task
from simulator.program.ddp import bucket_sizes
from simulator.program.stage import StageProgram

MIB = 1 << 20
# Four layers 1024 wide with 8 heads and an intermediate width of 4096; a vocabulary of 2048.
PARAMETERS = 4 * (4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024) + 2 * 2048 * 1024 + 1024
DDP = (
    "training.zero=0",
    "parallel={dp_replicate: 16}",
    "training.optimizer={state_dtype: bf16, master_weights: false}",
)


def ddp(small: Small, *overrides: str, micro_batches: int = 1) -> StageProgram:
    return lower(small("dense", *DDP, *overrides), micro_batches)


def reductions(program: StageProgram) -> list[Task]:
    return [task for task in program.tasks if task.collective is not None]


def peak(program: StageProgram) -> float:
    return float(account(program.tasks, [*program.resident, *program.born], 1)["hbm"].peak_bytes[0])


def test_a_bucket_is_closed_by_the_gradient_that_fills_it() -> None:
    # The first at 1 MiB, the others at 25.
    sizes = [MIB, 20 * MIB, 20 * MIB, 30 * MIB, 2 * MIB]
    assert bucket_sizes(sizes, 25 * MIB) == [MIB, 40 * MIB, 30 * MIB, 2 * MIB]
    assert bucket_sizes([], 25 * MIB) == []


def test_every_rank_holds_everything_and_its_buckets(small: Small) -> None:
    program = ddp(small)
    kept = [item for item in (*program.resident, *program.born) if item.key != "resident.matmul workspaces"]
    held = {item.key: item.bytes for item in kept}
    assert held == {
        "resident.parameters": 2 * PARAMETERS,
        "resident.buckets": 2 * PARAMETERS,
        "resident.moments": 4 * PARAMETERS,
    }


def test_gradients_are_all_reduced_in_buckets_beside_the_backward_pass(small: Small) -> None:
    program = ddp(small)
    sent = [float(task.collective.wire_bytes[0]) for task in reductions(program)]  # type: ignore[union-attr,index]
    assert sum(sent) == pytest.approx(2 * 2 * PARAMETERS * 15 / 16)
    # The head's 4 MiB fill the first bucket; the last one ends with the table.
    assert sent[0] == 2 * 2 * 2048 * 1024 * 15 / 16
    assert {task.collective.communicator for task in reductions(program)} == {"dp_replicate"}  # type: ignore[union-attr]
    phases = [task.phase for task in reductions(program)]
    assert set(phases) == {"backward"}
    last_compute = max(n for n, task in enumerate(program.tasks) if task.phase == "backward" and task.kind == "gemm")
    before = [task for task in program.tasks[:last_compute] if task.collective is not None]
    assert len(before) >= len(phases) - 1


def test_larger_buckets_are_fewer(small: Small) -> None:
    few = ddp(small, "training.ddp.bucket_bytes=100 MiB")
    assert len(reductions(few)) < len(reductions(ddp(small)))


def test_only_the_last_micro_batch_is_reduced(small: Small) -> None:
    program = ddp(small, "training.global_batch_sequences=48", micro_batches=3)
    assert {task.micro_batch for task in reductions(program)} == {2}
    added = [task for task in program.tasks if task.name == "add gradients"]
    # Each of 39 weights in both later micro-batches.
    assert [sum(task.micro_batch == m for task in added) for m in range(3)] == [0, 39, 39]


def test_views_save_the_copy_of_every_gradient(small: Small) -> None:
    apart, views = ddp(small), ddp(small, "training.ddp.gradient_as_bucket_view=true")
    assert [task.name for task in apart.tasks].count("averages to gradients") == 1
    assert "averages to gradients" not in [task.name for task in views.tasks]
    assert peak(apart) - peak(views) > 0


def test_one_card_reduces_nothing(small: Small) -> None:
    program = lower(small("dense", *DDP, "cluster.accelerators=1", "parallel.dp_replicate=1"))
    assert reductions(program) == []
    assert "resident.buckets" not in [allocation.key for allocation in program.resident]
