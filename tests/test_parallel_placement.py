import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.parallel.folding import apart, fold
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement, members_within

NODES_OF_EIGHT = (8, 256)


def place(mesh: Mesh, domain_sizes: tuple[int, ...], *, folded: bool = False) -> Placement:
    groups = mesh.groups()
    features = [mesh.expert_rank(), *(w for group in groups.values() for w in members_within(group, domain_sizes))]
    folding = fold(np.stack(features, axis=1), groups) if folded else apart(groups, mesh.ranks)
    return Placement(mesh, folding, domain_sizes)


def ring_loads(placed: Placement, axis: str, gathered_bytes: float) -> np.ndarray:
    spread = placed.spread(axis)
    return spread.port_loads(gathered_bytes * (spread.size - 1) / spread.size)


def test_members_in_the_same_node_by_hand() -> None:
    # Six ranks in nodes of two; group 0 is ranks 0, 1, 2, 4.
    within = members_within(np.array([0, 0, 0, 1, 0, 1]), [2, 6])
    assert [level.tolist() for level in within] == [[2, 2, 1, 1, 1, 1], [4, 4, 4, 2, 4, 2]]


def test_a_ring_over_sixteen_nodes_of_eight() -> None:
    # Each of 128 members passes on 127/128 of the buffer over NVLink; eight rings share the eight ports of a node.
    loads = ring_loads(place(Mesh(1, 128, 64), NODES_OF_EIGHT), "dp_shard", 128e6)
    assert loads[0].tolist() == [127e6] * 128
    assert loads[1].tolist() == [127e6 / 8] * 128


def test_a_pair_in_different_nodes_sends_its_whole_shard_over_its_own_port() -> None:
    loads = ring_loads(place(Mesh(1, 128, 64), NODES_OF_EIGHT), "efsdp", 1e9)
    assert loads[0].tolist() == [0.0] * 128
    assert loads[1].tolist() == [0.5e9] * 128


def test_a_ring_inside_a_node_leaves_the_ports_alone() -> None:
    loads = ring_loads(place(Mesh(1, 16, 8), NODES_OF_EIGHT), "ep", 8e6)
    assert loads.tolist() == [[7e6] * 16, [0.0] * 16]


def test_a_group_of_one_passes_nothing_on() -> None:
    assert ring_loads(place(Mesh(1, 16, 16), NODES_OF_EIGHT), "efsdp", 8e6).tolist() == [[0.0] * 16] * 2


def test_a_ring_over_two_units_of_thirty_two_nodes() -> None:
    # A unit of 256 ranks has one out of 512 rings' worth of bytes to send on per accelerator: 511/512 of it over 256.
    loads = ring_loads(place(Mesh(1, 512, 1), (8, 256, 2048)), "dp_shard", 512e6)
    assert loads[:, 0].tolist() == [511e6, 511e6 / 8, 511e6 / 256]


def test_an_exchange_on_two_nodes_of_two_by_hand() -> None:
    sent = np.arange(1.0, 17.0).reshape(4, 4)
    out, into = place(Mesh(1, 4, 4), (2, 4)).exchange_loads(sent)
    assert out[0].tolist() == [2.0, 5.0, 12.0, 15.0]
    assert into[0].tolist() == [5.0, 2.0, 15.0, 12.0]
    assert out[1].tolist() == [3 + 4, 7 + 8, 9 + 10, 13 + 14]
    assert into[1].tolist() == [9 + 13, 10 + 14, 3 + 7, 4 + 8]


def test_an_even_exchange_over_sixty_four_ranks_on_nodes_of_eight() -> None:
    # 7 of 64 destinations are in the node, 56 outside, and one is the rank itself.
    out, into = place(Mesh(1, 128, 64), NODES_OF_EIGHT).exchange_loads(np.ones((64, 64)))
    assert (set(out[0]), set(out[1]), set(into[0]), set(into[1])) == ({7.0}, {56.0}, {7.0}, {56.0})


meshes = st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 6])).map(
    lambda degrees: Mesh(degrees[0], degrees[1] * degrees[2], degrees[2])
)


@given(meshes, st.sampled_from([1, 2, 4]), st.integers(0, 2**32 - 1))
def test_what_is_sent_at_a_level_arrives_there_and_nothing_is_lost(mesh: Mesh, node: int, seed: int) -> None:
    sent = np.random.default_rng(seed).integers(0, 1000, (mesh.ep, mesh.ep)).astype(float)
    out, into = place(mesh, (node, 4 * node, 128 * node)).exchange_loads(sent)
    assert out.sum(axis=1).tolist() == into.sum(axis=1).tolist()
    away = sent.sum() - np.trace(sent)
    assert out.sum() == away * mesh.ranks // mesh.ep


@given(meshes, st.sampled_from([1, 2, 4]), st.integers(0, 2**32 - 1))
def test_folded_ranks_carry_the_loads_of_those_that_they_stand_for(mesh: Mesh, node: int, seed: int) -> None:
    sizes = (node, 128 * node)
    whole, folded = place(mesh, sizes), place(mesh, sizes, folded=True)
    behaviour = folded.folding.behaviour
    for axis in mesh.groups():
        assert np.array_equal(ring_loads(folded, axis, 1e6)[:, behaviour], ring_loads(whole, axis, 1e6))
    sent = np.broadcast_to(np.random.default_rng(seed).integers(0, 1000, mesh.ep).astype(float), (mesh.ep, mesh.ep))
    if node >= mesh.ep or mesh.ep % node == 0:
        for fold_side, whole_side in zip(folded.exchange_loads(sent), whole.exchange_loads(sent), strict=True):
            assert np.array_equal(fold_side[:, behaviour], whole_side)


@pytest.mark.parametrize("ranks", [1, 2, 7])
def test_a_rank_alone_in_its_node_uses_its_port_for_the_whole_ring(ranks: int) -> None:
    loads = ring_loads(place(Mesh(1, ranks, 1), (1, 64)), "dp_shard", float(ranks))
    assert loads.tolist() == [[0.0] * ranks, [float(ranks - 1)] * ranks]
