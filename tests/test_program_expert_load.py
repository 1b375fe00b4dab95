import numpy as np

from simulator.parallel.folding import apart, fold
from simulator.parallel.mesh import Mesh
from simulator.program.expert_load import layer_load
from simulator.routing.rows import rows_per_expert
from simulator.routing.table import RoutingTable

TABLE = RoutingTable(np.array([[4.0, 2.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]), name="by hand")


def rows(layer: int, tokens: int, ep: int) -> np.ndarray:
    """Rows of two chosen experts a token of each of *ep* ranks, by the rank that holds them."""
    return rows_per_expert(TABLE, layer, tokens * ep, 2).reshape(ep, -1)


def test_rows_of_four_experts_on_two_ranks_by_hand() -> None:
    mesh = Mesh(dp_shard=2, ep=2)
    load = layer_load(rows(0, 8, 2), mesh, apart(mesh.groups(), 2))
    # Two ranks bring 8 tokens each: 32 rows, of which half go to expert 0, as many as there are tokens.
    assert load.rows.tolist() == [[16, 8], [4, 4]]
    assert load.total_rows.tolist() == [24, 8]
    # Both ranks send the same mix: 12 rows to rank 0 and 4 to rank 1.
    assert load.sent_rows.tolist() == [[12.0, 4.0], [12.0, 4.0]]
    assert load.own_rows == 16


def test_a_layer_follows_its_own_line_of_the_table() -> None:
    mesh = Mesh(dp_shard=2, ep=2)
    load = layer_load(rows(1, 8, 2), mesh, apart(mesh.groups(), 2))
    assert load.rows.tolist() == [[8, 8], [8, 8]]


def test_every_ep_group_has_the_same_load_whether_folded_or_not() -> None:
    mesh = Mesh(dp_replicate=2, dp_shard=4, ep=2)
    whole = layer_load(rows(0, 8, 2), mesh, apart(mesh.groups(), 8))
    folding = fold(mesh.expert_rank()[:, None], mesh.groups())
    folded = layer_load(rows(0, 8, 2), mesh, folding)
    assert whole.rows.tolist() == [[16, 8], [4, 4]] * 4
    assert folded.rows.tolist() == [[16, 8], [4, 4]]
    assert folding.ranks.tolist() == [4, 4]


def test_without_expert_parallelism_a_rank_computes_its_own_tokens() -> None:
    mesh = Mesh(dp_shard=4)
    load = layer_load(rows(0, 16, 1), mesh, fold(np.zeros((4, 1), int), mesh.groups()))
    assert load.rows.tolist() == [[16, 8, 4, 4]]
    assert load.sent_rows.tolist() == [[32.0]]


def test_a_rank_with_more_tokens_sends_more_rows_by_hand() -> None:
    mesh = Mesh(dp_shard=2, ep=2)
    load = layer_load(rows(0, 8, 2), mesh, apart(mesh.groups(), 2), source_share=np.array([0.5, 1.5]))
    # Of 16 tokens the second rank brings 12; the mix is the same: 24 rows to rank 0 and 8 to rank 1 in all.
    assert load.sent_rows.tolist() == [[6.0, 2.0], [18.0, 6.0]]
    assert np.asarray(load.own_rows).tolist() == [8, 24]
    assert load.total_rows.tolist() == [24, 8]
