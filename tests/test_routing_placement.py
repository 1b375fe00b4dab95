import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.routing import Placement, RoutingTable, contiguous, moves

# Three experts on two ranks of two slots; expert 0 has a copy on each.
COPIED = Placement(np.array([[[0, 1], [2, 0]]]), 3)


def test_contiguous_placement_has_neighbours_on_a_rank():
    assert contiguous(1, 6, 3).slots.tolist() == [[[0, 1], [2, 3], [4, 5]]]


def test_ranks_must_divide_experts():
    with pytest.raises(ValueError, match="ep is 4, but it must divide the 6 experts: nearest are 3 and 6"):
        contiguous(1, 6, 4)


def test_every_expert_needs_a_slot():
    with pytest.raises(ValueError, match="1 experts have no slot, the first is expert 2 of layer 0"):
        Placement(np.array([[[0, 1], [0, 1]]]), 3)


def test_copies_share_the_load_of_their_expert():
    assert COPIED.replicas.tolist() == [[2, 1, 1]]
    assert COPIED.rank_load(RoutingTable(np.array([[8.0, 1.0, 3.0]]), "t")).tolist() == [[5.0, 7.0]]


def test_the_first_copy_takes_the_odd_row():
    assert COPIED.rows(np.array([[7, 1, 3]])).tolist() == [[[4, 1], [3, 3]]]


@given(seed=st.integers(0, 2**32), ranks=st.integers(1, 6), width=st.integers(1, 5))
def test_splitting_over_copies_loses_no_row(seed, ranks, width):
    rng = np.random.default_rng(seed)
    experts = int(rng.integers(1, ranks * width + 1))
    slots = np.concatenate([np.arange(experts), rng.integers(0, experts, ranks * width - experts)])
    placement = Placement(np.stack([rng.permutation(slots) for _ in range(2)]).reshape(2, ranks, width), experts)
    rows = rng.integers(0, 100, (2, experts))
    split = placement.rows(rows)
    for layer in range(2):
        found = np.bincount(placement.slots[layer].ravel(), weights=split[layer].ravel(), minlength=experts)
        assert found.tolist() == rows[layer].tolist()
        for expert in range(experts):
            copies = split[layer][placement.slots[layer] == expert]
            assert copies.max() - copies.min() <= 1


def test_moves_tell_whether_a_neighbour_had_the_expert():
    # Four ranks on two nodes. Rank 0 takes over from rank 1 of its node, rank 1 from rank 3 of the other node.
    old = Placement(np.array([[[0], [1], [2], [3]]]), 4)
    new = Placement(np.array([[[1, 0], [3, 0], [2, 2], [3, 3]]]), 4)
    found = moves(old, new, ranks_per_node=2)
    assert found.within_node.tolist() == [[1, 1, 0, 0]]
    assert found.across_nodes.tolist() == [[0, 1, 0, 0]]
    assert found.total == 3


def test_nothing_moves_when_a_rank_only_reorders_its_slots():
    assert moves(COPIED, Placement(np.array([[[1, 0], [0, 2]]]), 3), 1).total == 0


def test_tokens_take_the_copies_of_an_expert_in_turn():
    # Ranks 0 to 2 hold experts (0, 1), (0, 2) and (0, 3).
    placement = Placement(np.array([[[0, 1], [0, 2], [0, 3]]]), 4)
    picks = np.array([[[0, 1], [0, 2], [3, 0], [0, -1]]])
    assert placement.ranks_of(picks).tolist() == [[[0, 0], [1, 1], [2, 2], [0, -1]]]
