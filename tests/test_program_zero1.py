from collections.abc import Iterable

import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.simulation import Part, Simulation
from simulator.engine.task import Task
from simulator.program.stage import StageProgram

# Four layers 1024 wide with 8 heads and an intermediate width of 4096; a vocabulary of 2048.
LAYER = 4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
ROOT = 2 * 2048 * 1024 + 1024
PARAMETERS = 4 * LAYER + ROOT


def zero1(small: Small, *overrides: str, kind: str = "dense", micro_batches: int = 2) -> StageProgram:
    return lower(small(kind, "training.zero=1", *overrides), micro_batches)


def resident(program: StageProgram) -> dict[str, float]:
    """Bytes of weights and their states by kind; the rest is in tests/test_program_megatron.py."""
    rest = ("resident.unread gradients", "resident.matmul workspaces")
    kept = [a for a in (*program.resident, *program.born) if a.key not in rest]
    return {kind: sum(float(np.max(a.bytes)) for a in kept if a.kind == kind) for kind in {a.kind for a in kept}}


def moved(tasks: Iterable[Task]) -> list[tuple[str, float]]:
    """Operation and bytes sent of each collective."""
    return [(t.name, float(np.max(t.collective.wire_bytes))) for t in tasks if t.collective is not None]


@pytest.mark.parametrize("replicas", [1, 2])
def test_whole_parameters_and_gradients_and_a_share_of_the_optimizer(small: Small, replicas: int) -> None:
    split = (f"parallel.dp_replicate={replicas}", f"parallel.dp_shard={16 // replicas}")
    assert resident(zero1(small, *split)) == {
        "parameters": 2 * PARAMETERS,
        "gradients": 4 * PARAMETERS,
        "optimizer": 12 * PARAMETERS / (16 / replicas),
    }


@pytest.mark.parametrize(
    ("override", "gradient", "states"),
    [
        ("training.fsdp.reduce_dtype=bf16", 2, 12),
        ("training.optimizer={state_dtype: bf16}", 4, 8),
        # The moments alone: what is updated are the parameters themselves.
        ("training.optimizer={master_weights: false}", 4, 8),
        ("training.optimizer={name: sgd}", 4, 4),
    ],
)
def test_formats_of_states(small: Small, override: str, gradient: int, states: int) -> None:
    held = resident(zero1(small, override))
    assert held["gradients"] == gradient * PARAMETERS
    assert held["optimizer"] == states * PARAMETERS / 16


def test_gradients_are_scattered_and_parameters_gathered_once_a_step(small: Small) -> None:
    program = zero1(small)
    assert moved(program.tasks) == [
        ("reduce_scatter dp_shard", 4 * PARAMETERS * 15 / 16),
        ("all_gather dp_shard", 2 * PARAMETERS * 15 / 16),
    ]
    assert {task.phase for task in program.tasks if task.collective is not None} == {"optimizer"}


def test_replicas_sum_their_shards_between_the_two(small: Small) -> None:
    program = zero1(small, "parallel.dp_replicate=2", "parallel.dp_shard=8")
    assert moved(program.tasks) == [
        ("reduce_scatter dp_shard", 4 * PARAMETERS * 7 / 8),
        ("all_reduce dp_replicate", 2 * (4 * PARAMETERS / 8) / 2),
        ("all_gather dp_shard", 2 * PARAMETERS * 7 / 8),
    ]


def test_experts_go_among_the_ranks_that_hold_the_same_ones(small: Small) -> None:
    # 16 experts over ep 8: two of 3 x 1024 x 512 elements in each of four layers on a pair of ranks.
    experts = 4 * 2 * 3 * 1024 * 512
    sent = dict(moved(zero1(small, "parallel.ep=8", kind="mixture").tasks))
    assert sent["reduce_scatter efsdp"] == 4 * experts / 2
    assert sent["all_gather efsdp"] == 2 * experts / 2


def test_the_update_waits_for_the_scatter_and_the_gather_for_the_update(small: Small) -> None:
    program = zero1(small)
    (recording,) = Simulation(Part(program.tasks, 1)).run()
    at = {task.name: position for position, task in enumerate(program.tasks)}
    scatter, update, gather = (at[name] for name in ("reduce_scatter dp_shard", "optimizer", "all_gather dp_shard"))
    last_pass = program.micro_batch_ends[-1]
    for before, after in ((last_pass, scatter), (scatter, update), (update, gather)):
        assert recording.end_ns[before, 0] <= recording.begin_ns[after, 0]


def test_passes_gather_no_parameters_and_reduce_no_gradients(small: Small) -> None:
    kinds = {a.kind for task in zero1(small).tasks for a in task.allocates}
    assert kinds.isdisjoint({"parameters", "gathered parameters", "reduce buffers"})


def test_the_optimizer_reads_and_writes_its_share(small: Small) -> None:
    def update_ns(*overrides: str) -> int:
        return int(next(t for t in zero1(small, *overrides).tasks if t.name == "optimizer").duration_ns)

    assert update_ns("parallel.dp_replicate=16", "parallel.dp_shard=1") > 10 * update_ns()
