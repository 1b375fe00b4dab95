import pytest
from small_jobs import Small, lower

from simulator.parallel.sharding import Matrix
from simulator.program.ownership import fullest_share
from simulator.program.update import Ownership

MUON = "training.optimizer={name: muon, state_dtype: bf16, master_weights: false}"
# Four layers: four square matrices 1024 wide and three of 1024 x 4096 each. Table and head 2048 x 1024.
HIDDEN = 4 * (4 * 1024 * 1024 + 3 * 1024 * 4096)
REST = 2 * 2048 * 1024 + (4 * 2 + 1) * 1024


def owned(small: Small, *overrides: str) -> Ownership:
    return lower(small("dense", *overrides)).layout.ownership


def test_the_largest_matrix_goes_to_the_rank_with_the_fewest_elements() -> None:
    stacks = (Matrix(2, 4, 3), Matrix(4, 4), Matrix(4, 2, 2))
    # 16, 8, 8, 8, 8, 8 over three ranks: 16, then 8 + 8 and 8 + 8, and the last 8 on the first.
    assert fullest_share(stacks, 3) == (Matrix(4, 4), Matrix(4, 2))
    assert fullest_share(stacks, 1) == (Matrix(4, 4), Matrix(2, 4, 3), Matrix(4, 2, 2))
    assert fullest_share((), 4) == ()


def test_a_rule_without_whole_matrices_has_none(small: Small) -> None:
    assert owned(small) == Ownership(owned(small).tensors)
    assert owned(small).elements == (HIDDEN + REST) / 16


def test_fsdp_keeps_rows_of_every_matrix_and_orthogonalises_some_whole(small: Small) -> None:
    found = owned(small, MUON)
    assert found.elements == (HIDDEN + REST) / 16
    # Twelve matrices of 4 Mi elements and sixteen of 1 Mi over 16 ranks: one large, or four small ones.
    assert sum(m.elements for m in found.matrices) == 4 << 20
    assert found.travelling == (("dp_shard", HIDDEN / 16),)


def test_zero_1_owns_the_matrices_that_it_orthogonalises(small: Small) -> None:
    found = owned(small, MUON, "training.zero=1")
    assert sum(tensor.elements for tensor in found.tensors if tensor.matrix) == 4 << 20
    assert sum(tensor.elements for tensor in found.tensors if not tensor.matrix) == pytest.approx(REST / 16)
    assert found.travelling == ()


def test_experts_are_shared_among_the_ranks_that_hold_the_same_ones(small: Small) -> None:
    found = lower(small("mixture", MUON, "parallel.ep=8")).layout.ownership
    # Two experts a rank, three matrices of 1024 x 512 each in four layers, on a pair of ranks.
    experts = [m for m in found.matrices if {m.rows, m.columns} == {1024, 512}]
    assert sum(m.elements for m in experts) == 4 * 2 * 3 * 1024 * 512 / 2
    assert dict(found.travelling)["efsdp"] == 4 * 2 * 3 * 1024 * 512 / 2
