import numpy as np
import pytest

from simulator.parallel.folding import Folding, apart, fold
from simulator.parallel.mesh import Mesh


def folded(mesh: Mesh, *slow_ranks: int) -> Folding:
    """*mesh* folded by the experts that ranks hold, with some ranks slower than the others."""
    slow = np.zeros(mesh.ranks, np.int64)
    slow[list(slow_ranks)] = 1
    return fold(np.stack([mesh.expert_rank(), slow], axis=1), mesh.groups())


@pytest.mark.parametrize(
    ("mesh", "behaviours"),
    [
        (Mesh(1, 128, 64), 64),
        (Mesh(1, 16384, 64), 64),
        (Mesh(128, 128, 64), 64),
        (Mesh(1, 128, 128), 128),
        (Mesh(16, 64, 1), 1),
    ],
)
def test_ranks_that_hold_the_same_experts_are_one_behaviour(mesh: Mesh, behaviours: int) -> None:
    folding = folded(mesh)
    assert folding.behaviours == behaviours
    assert set(folding.ranks.tolist()) == {mesh.ranks // behaviours}
    assert folding.representative.tolist() == list(range(behaviours))


def test_a_straggler_among_equals_stands_alone() -> None:
    folding = folded(Mesh(1, 64, 1), 5)
    assert folding.ranks.tolist() == [63, 1]
    assert folding.representative.tolist() == [0, 5]
    assert folding.groups["dp_shard"].tolist() == [0, 0]


def test_a_straggler_sets_its_expert_group_apart_from_the_others() -> None:
    # The 64 ranks of its ep group are distinct from each other anyway; now they differ from those of the other group.
    folding = folded(Mesh(1, 128, 64), 5)
    assert folding.behaviours == 128


def test_replicas_without_the_straggler_stay_alike() -> None:
    # Four replicas of 64: the straggler's replica is told apart, the other three are one. Its own shard's replicas
    # wait for it, which tells expert rank 5 apart once more, but that it is already.
    folding = folded(Mesh(4, 64, 64), 5)
    assert folding.behaviours == 128
    assert sorted(set(folding.ranks.tolist())) == [1, 3]


def test_stragglers_at_the_same_place_of_two_groups_fold_together() -> None:
    folding = folded(Mesh(1, 128, 64), 5, 69)
    assert folding.behaviours == 64


def test_equal_ranks_in_groups_of_different_size_are_not_alike() -> None:
    folding = fold(np.zeros((5, 1), np.int64), {"axis": np.array([0, 0, 0, 1, 1])})
    assert folding.behaviour.tolist() == [0, 0, 0, 1, 1]
    assert folding.groups["axis"].tolist() == [0, 1]


def test_what_distinguishes_ranks_travels_along_a_chain_of_groups() -> None:
    # Pairs along "right" and along "left" join the ranks to a line 0-1-2-3-4-5, with rank 0 slow at its end.
    right, left = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 2, 2, 3])
    assert fold(np.array([[1], [0], [0], [0], [0], [0]]), {"right": right, "left": left}).behaviours == 6
    # Slow at both ends it reads the same from either side, save for which axis comes first.
    assert fold(np.array([[1], [0], [0], [0], [0], [1]]), {"right": right, "left": left}).behaviour.tolist() == [
        0,
        1,
        2,
        2,
        1,
        0,
    ]


def test_apart_keeps_every_rank() -> None:
    mesh = Mesh(2, 8, 4)
    folding = apart(mesh.groups(), mesh.ranks)
    assert folding.behaviours == 16
    assert folding.ranks.tolist() == [1] * 16
    assert {axis: group.tolist() for axis, group in folding.groups.items()} == {
        axis: group.tolist() for axis, group in mesh.groups().items()
    }
