import numpy as np
import pytest

from simulator.parallel.mesh import Mesh


def test_groups_of_two_replicas_of_eight_shards_with_experts_over_four() -> None:
    mesh = Mesh(dp_replicate=2, dp_shard=8, ep=4)
    assert (mesh.ranks, mesh.efsdp, mesh.data_parallel) == (16, 2, 16)
    assert mesh.expert_rank().tolist() == [0, 1, 2, 3] * 4
    groups = {axis: group.tolist() for axis, group in mesh.groups().items() if axis not in {"tp", "cp", "etp"}}
    assert groups == {
        "dp_shard": [0] * 8 + [1] * 8,
        "dp_replicate": [0, 1, 2, 3, 4, 5, 6, 7] * 2,
        "ep": [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4,
        "efsdp": [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7],
    }


def test_groups_of_a_stage_with_tensor_context_and_expert_tensor_parallelism() -> None:
    # Two stages of dp_shard 2 x cp 2 x tp 2; experts over ep 2 x etp 2, each sharded over the remaining 2.
    mesh = Mesh(dp_shard=2, cp=2, tp=2, pp=2, ep=2, etp=2)
    assert (mesh.ranks, mesh.stage_ranks, mesh.fsdp, mesh.efsdp, mesh.data_parallel) == (16, 8, 4, 2, 2)
    assert mesh.expert_rank().tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert {axis: group.tolist() for axis, group in mesh.groups().items()} == {
        "tp": [0, 0, 1, 1, 2, 2, 3, 3],
        "cp": [0, 1, 0, 1, 2, 3, 2, 3],
        "dp_shard": [0, 1, 0, 1, 0, 1, 0, 1],
        "dp_replicate": [0, 1, 2, 3, 4, 5, 6, 7],
        "ep": [0, 1, 0, 1, 2, 3, 2, 3],
        "efsdp": [0, 1, 2, 3, 0, 1, 2, 3],
        "etp": [0, 0, 1, 1, 2, 2, 3, 3],
    }


@pytest.mark.parametrize(
    "mesh", [Mesh(2, 8, 4), Mesh(1, 128, 64), Mesh(4, 6, 3), Mesh(3, 1, 1), Mesh(2, 2, 8, tp=2, cp=4, pp=3, etp=2)]
)
def test_every_axis_cuts_the_ranks_in_groups_of_its_own_size(mesh: Mesh) -> None:
    sizes = {"dp_shard": mesh.fsdp} | {a: getattr(mesh, a) for a in ("tp", "cp", "dp_replicate", "ep", "efsdp", "etp")}
    for axis, group in mesh.groups().items():
        assert set(np.bincount(group).tolist()) == {sizes[axis]}


def test_an_expert_group_holds_each_expert_once_and_replicas_of_a_shard_hold_the_same() -> None:
    mesh = Mesh(2, 8, 4)
    place, groups = mesh.expert_rank(), mesh.groups()
    for group in range(4):
        assert sorted(place[groups["ep"] == group].tolist()) == [0, 1, 2, 3]
    for axis in ("efsdp", "dp_replicate"):
        for group in range(8):
            assert len(set(place[groups[axis] == group].tolist())) == 1


def test_without_expert_parallelism_experts_are_sharded_like_everything_else() -> None:
    groups = Mesh(2, 4, 1).groups()
    assert groups["efsdp"].tolist() == groups["dp_shard"].tolist()
    assert groups["ep"].tolist() == list(range(8))


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ((1, 8, 3), r"ep\(3\) \* etp\(1\) must divide dp_shard\(8\) \* cp\(1\) \* tp\(1\) = 8"),
        ((0, 8, 1), "dp_replicate must be at least 1, found 0"),
        ((1, 8, -2), "ep must be at least 1, found -2"),
    ],
)
def test_degrees_that_do_not_go_together_raise(degrees: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mesh(*degrees)
