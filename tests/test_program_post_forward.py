import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.engine.task import Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.parallel.mesh import Mesh
from simulator.program.stage import StageProgram

NODE = "training.fsdp.reshard_after_forward=8"
# A layer of the small dense model in bf16.
LAYER_BYTES = 2 * (4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024)


def gathers(program: StageProgram, axis: str) -> list[Task]:
    found = [task for task in program.tasks if task.kind == "all_gather" and task.collective is not None]
    return [task for task in found if task.collective is not None and task.collective.communicator == axis]


def test_parts_are_groups_of_consecutive_ranks() -> None:
    groups = Mesh(dp_replicate=2, dp_shard=4, tp=2, post_forward=2).groups()
    # Ranks 0, 2, 4, 6 share parameters; 0 and 2 are the first part, 4 and 6 the second.
    assert groups["dp_shard part"].tolist() == [0, 2, 0, 2, 1, 3, 1, 3, 4, 6, 4, 6, 5, 7, 5, 7]
    assert "dp_shard part" not in Mesh(dp_shard=4).groups()


def test_parts_of_experts_lie_within_the_ranks_that_share_them() -> None:
    groups = Mesh(dp_shard=8, ep=2, post_forward=2).groups()
    for part, whole in (("dp_shard part", "dp_shard"), ("efsdp part", "efsdp")):
        for number in np.unique(groups[part]):
            members = groups[part] == number
            assert members.sum() == 2
            assert len(np.unique(groups[whole][members])) == 1


def test_the_second_gather_is_among_the_ranks_of_the_part(small: Small) -> None:
    program = lower(small("dense", NODE))
    # Forward, four layers and the root over all; backward, three layers over the node: the last one is still there.
    whole, part = gathers(program, "dp_shard"), gathers(program, "dp_shard part")
    assert ({task.phase for task in whole}, {task.phase for task in part}) == ({"forward"}, {"backward"})
    assert float(part[0].collective.wire_bytes[0]) == LAYER_BYTES * 7 / 8  # type: ignore[union-attr,index]


def test_parts_of_all_layers_are_held_between_forward_and_backward(small: Small) -> None:
    program = lower(small("dense", NODE))
    parts = [a for task in program.tasks for a in task.allocates if a.key.startswith("post-forward.")]
    assert [a.bytes for a in parts] == [LAYER_BYTES / 8] * 4
    ledger = account(program.tasks, program.resident, 1)["hbm"]
    assert ledger.left_bytes[0] == 0


def test_a_gather_within_the_node_is_faster(small: Small) -> None:
    program = lower(small("dense", NODE))
    whole, part = gathers(program, "dp_shard")[-1], gathers(program, "dp_shard part")[-1]
    assert np.max(part.duration_ns) < np.max(whole.duration_ns)


def test_later_micro_batches_gather_from_parts_only_after_forward(small: Small) -> None:
    summary = forecast(*small("dense", NODE, "training.global_batch_sequences=64")).summary
    assert summary["engine"]["micro_batches"] == 4


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("training.fsdp.reshard_after_forward=5",), r"found 5, which is no part of dp_shard\(16\) .* nearest: 4"),
        (("training.fsdp.reshard_after_forward=16",), "found 16, which is no part of"),
        ((NODE, "training.zero=1"), "found 8, but zero 1 reshards nothing"),
    ],
)
def test_a_number_that_parts_nothing_is_refused(small: Small, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refused, match=message):
        assemble_job(*small("dense", *overrides))
