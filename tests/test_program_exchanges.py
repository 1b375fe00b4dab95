"""Ways of rows to their experts: two nodes of two ranks with two experts each, two choices a token, by hand."""

import numpy as np
import pytest

from simulator.forecast.assembly import find_architecture
from simulator.forecast.exchanging import way_problems
from simulator.hardware.library import build_cluster
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.program.exchanges import exchanges, mixes_of
from simulator.program.expert_load import layer_load, node_members, wire_rows
from simulator.routing.coverage import Choice
from simulator.shipped import shipped

FOLDER = shipped("scenarios")

EVEN = np.full((4, 2), 14)
"""Rows of 8 experts on 4 ranks, of 14 tokens a rank: 56 tokens, 112 rows."""
RANK = 1 - (6 * 5) / (8 * 7)
"""A token misses both experts of a rank when it chooses among the other six."""
NODE = 1 - (4 * 3) / (8 * 7)


def test_what_a_token_reaches():
    mix = mixes_of(EVEN[None], Choice(2), 2)[0]
    assert (mix.tokens, mix.wanted.tolist()) == (14, [7, 7, 7, 7])
    assert mix.reached == pytest.approx([RANK] * 4)
    assert mix.entered == pytest.approx([NODE] * 2)


def test_every_row_by_itself():
    assert exchanges()["all_to_all"].sent(mixes_of(EVEN[None], Choice(2), 2)[0]).tolist() == [[7] * 4] * 4


def test_once_to_each_rank():
    sent = exchanges()["deduplicated"].sent(mixes_of(EVEN[None], Choice(2), 2)[0])
    assert sent == pytest.approx(np.full((4, 4), 14 * RANK))


def test_once_to_each_node_and_on_from_there():
    sent = exchanges()["hierarchical"].sent(mixes_of(EVEN[None], Choice(2), 2)[0])
    over, on = 14 * NODE, 2 * 14 * RANK
    assert sent == pytest.approx(np.array([[on, on, over, 0], [on, on, 0, over], [over, 0, on, on], [0, over, on, on]]))


def test_low_latency_sends_every_row_and_keeps_room_for_all_of_them():
    way = exchanges()["low_latency"]
    assert way.sent(mixes_of(EVEN[None], Choice(2), 2)[0]).tolist() == [[7] * 4] * 4
    # DeepSeek-V3, 128 tokens a rank: 256 * 128 places of 14,336 bytes to send from, and 16 more to receive in, twice.
    assert way.buffer_bytes(256, 128, 14336.0) == 2 * 256 * 128 * (2 * 14336 + 16)


def test_a_group_inside_a_node_is_deduplicated():
    mix = mixes_of(EVEN[None], Choice(2), 4)[0]
    assert exchanges()["hierarchical"].sent(mix) == pytest.approx(exchanges()["deduplicated"].sent(mix))


def test_ranks_compute_the_same_rows_whatever_the_way():
    mesh = Mesh(dp_shard=4, ep=4)
    plain, relayed = (
        layer_load(EVEN, mesh, apart(mesh.groups(), 4), way, Choice(2), 2) for way in ("all_to_all", "hierarchical")
    )
    assert np.array_equal(plain.rows, relayed.rows)
    assert plain.own_rows == relayed.own_rows == 28
    assert plain.wire_rows.sum(axis=1).tolist() == [28] * 4


@pytest.mark.parametrize(("ep", "etp", "members"), [(4, 1, 4), (8, 1, 8), (16, 1, 8), (8, 2, 4), (12, 1, 0), (4, 3, 0)])
def test_ranks_of_a_group_in_a_domain_of_eight(ep, etp, members):
    assert node_members(Mesh(dp_shard=ep * etp, ep=ep, etp=etp), 8) == members


def test_a_token_once_to_each_rank_asks_for_no_nodes():
    # Six ranks in domains of four: what nodes have in common plays no part.
    rows, choice = np.full((6, 1), 12), Choice(2)
    sent = wire_rows(rows, Mesh(dp_shard=6, ep=6), "deduplicated", choice, 4)
    assert sent == pytest.approx(exchanges()["deduplicated"].sent(mixes_of(rows[None], choice, 6)[0]))
    gb200, model = build_cluster("gb200-nvl72", "nvl72-rail-400g", 144, FOLDER), find_architecture("kimi-k3.1", FOLDER)
    refused = {name: [*way_problems(name, model, gb200, 32, 1, gpu_direct=True)] for name in exchanges()}
    assert len(refused["hierarchical"]) == 1
    assert (
        "allowed: all_to_all, deduplicated, low_latency, or a divisor or multiple of 72" in refused["hierarchical"][0]
    )
    assert not refused["deduplicated"]


def test_cards_of_one_domain_need_not_divide_it():
    some = build_cluster("gb200-nvl72", "nvl72-rail-400g", 64, FOLDER)
    assert some.scale_up_domain == 64


def test_recorded_tokens_say_which_experts_go_together():
    # Half of the tokens choose the two experts of rank 0, the others one of rank 2 and one of rank 3.
    together = np.array([[0, 0], [2, 3]])
    rows = np.array([[28, 28], [0, 0], [28, 0], [0, 28]])
    mix = mixes_of(rows[None], Choice(2), 2, together[None])[0]
    assert mix.wanted.tolist() == [14, 0, 7, 7]
    assert (mix.reached.tolist(), mix.entered.tolist()) == ([0.5, 0, 0.5, 0.5], [0.5, 0.5])
    assert exchanges()["deduplicated"].sent(mix)[0].tolist() == [7, 0, 7, 7]
    # Seven of each rank's tokens enter each node, and what came from both nodes is passed on inside.
    sent = exchanges()["hierarchical"].sent(mix)
    assert sent.tolist() == [[14, 0, 7, 0], [14, 0, 0, 7], [7, 0, 14, 14], [0, 7, 14, 14]]


def test_tokens_of_a_sample_reach_a_rank_no_oftener_than_all_tokens_want_it():
    # Two rows of 56 tokens go to rank 3, but the sample has met one of two tokens there.
    rows = np.array([[110, 0], [0, 0], [0, 0], [2, 0]])
    mix = mixes_of(rows[None], Choice(2), 2, np.array([[[0, 0], [0, 3]]]))[0]
    assert mix.reached == pytest.approx([1, 0, 0, 2 / 56])
    assert mix.entered == pytest.approx([1, 2 / 56])
