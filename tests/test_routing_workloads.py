import numpy as np
import pytest

from simulator.routing import RoutingError, RoutingTable
from simulator.routing.trace import Trace, gather
from simulator.routing.workloads import Shape, workload, workload_names, workload_picks

SMALL = Shape(experts=8, top_k=2, ranks=4, tokens=128)
LARGE = Shape(experts=256, top_k=8, ranks=64, tokens=128)
NAMES = [
    "W0_balanced", "W1_hot_expert_set", "W2_hot_rank", "W3_spread_hot_experts", "W4_source_ragged",
    "W5_zero_expert_rank", "W6_rotating_hotspot", "W7_burst",
]  # fmt: skip


def recorded(name: str, shape: Shape = LARGE, steps: int = 1) -> Trace:
    trace = gather(workload(name, 3, steps, shape))
    assert trace is not None
    return trace


def heat(table: RoutingTable) -> float:
    return float(table.expert_max_over_mean()[0])


def test_the_names_are_those_of_the_public_benchmark():
    assert workload_names() == NAMES


@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize("name", NAMES)
def test_every_token_picks_different_experts_that_exist(name, shape):
    for step in range(5):
        ranks = workload_picks(name, 3, step, shape)
        assert len(ranks) == shape.ranks
        picks = np.sort(np.concatenate(ranks), axis=1)
        assert picks.shape == (shape.ranks * shape.tokens, shape.top_k)
        assert (np.diff(picks, axis=1) > 0).all()
        assert picks.min() >= 0
        assert picks.max() < shape.experts


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_follows_from_name_seed_and_step_alone(name):
    first, again, other = (np.concatenate(workload_picks(name, seed, 3, LARGE)) for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("name", ["W0_balanced", "W1_hot_expert_set", "W6_rotating_hotspot"])
def test_the_layout_does_not_change_the_logical_workload(name):
    wide, narrow = Shape(256, 8, 64, 128), Shape(256, 8, 8, 1024)
    assert (
        np.concatenate(workload_picks(name, 1, 2, wide)) == np.concatenate(workload_picks(name, 1, 2, narrow))
    ).all()


def test_balanced_is_exactly_even():
    table = recorded("W0_balanced").table
    assert (heat(table), table.rank_max_over_mean(64)) == (1.0, 1.0)


@pytest.mark.parametrize("experts", [8, 60, 64, 128, 256, 384, 512, 896])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32, 64, 128])
def test_balanced_leaves_no_rank_idle_even_with_three_picks_a_rank(experts, ranks):
    if experts % ranks:
        pytest.skip("the experts do not divide over the ranks")
    for seed in range(10):
        load = np.bincount(np.concatenate(workload_picks("W0_balanced", seed, 0, Shape(experts, 3, ranks, 1))).ravel(),
                           minlength=experts).reshape(ranks, -1).sum(axis=1)  # fmt: skip
        assert load.min() >= 1


def test_hot_set_and_hot_rank_are_equally_hot_and_differ_in_placement():
    anywhere, rank, spread = (recorded(name).table for name in NAMES[1:4])
    # 0.8 of the picks on 32 of 256 experts: 6.4 x the mean.
    assert [heat(table) for table in (anywhere, rank, spread)] == pytest.approx([6.4] * 3, rel=0.06)
    assert rank.rank_max_over_mean(64) == pytest.approx(6.4, rel=0.03)
    # One hot expert on a rank of four, the others share what is left: (6.4 + 3 * 0.914) / 4.
    assert spread.rank_max_over_mean(64) == pytest.approx((6.4 + 3 * 0.9 / (1 - 4 / 256)) / 4, rel=0.06)


def test_with_128_tokens_and_two_picks_the_heat_is_near_the_published():
    # Published for EP4, 128 tokens a rank, top-2: 3.312, 3.219 and 3.312.
    for name in ("W1_hot_expert_set", "W2_hot_rank", "W6_rotating_hotspot"):
        assert heat(recorded(name, SMALL).table) == pytest.approx(3.28, rel=0.06)


def test_ragged_sources_bring_different_amounts_to_even_destinations():
    trace = recorded("W4_source_ragged")
    share = np.sort(trace.source_share) * 64
    assert share[[0, -1]] == pytest.approx([0.25, 1.75], abs=0.01)
    assert trace.table.rank_max_over_mean(64) == 1.0


def test_half_of_the_experts_and_ranks_get_nothing():
    table = recorded("W5_zero_expert_rank").table
    assert table.counts[0, 128:].tolist() == [0] * 128
    assert heat(table) == 2.0
    assert (table.rank_load(64)[0] == 0).sum() == 32


def test_the_hotspot_moves_every_three_steps():
    hottest = [
        set(np.argsort(-table.counts[0])[:32].tolist()) for table in recorded("W6_rotating_hotspot", steps=9).by_window
    ]
    assert hottest[0] == hottest[1] == hottest[2] != hottest[3]
    assert [len(hottest[at] & hottest[at + 3]) for at in (0, 3)] == [0, 0]


def test_a_burst_comes_after_three_steady_steps_and_dies_away():
    found = [heat(table) for table in recorded("W7_burst", steps=12).by_window]
    assert found[:3] == [1.0, 1.0, 1.0]
    assert found[3] == pytest.approx(6.4, rel=0.06)
    assert found[3] > found[4] > found[5] > found[6] > found[7] > 1.2
    assert (found[8:11], found[11] > 6) == ([1.0, 1.0, 1.0], True)


def test_layers_route_alike():
    trace = gather(workload("W2_hot_rank", 0, 1, LARGE, layers=3))
    assert trace is not None
    assert (trace.counts == trace.counts[:, :, :1]).all()
    assert trace.counts.shape == (1, 64, 3, 256)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("W2_hot_rnak", LARGE, "no workload 'W2_hot_rnak'; did you mean 'W2_hot_rank'"),
        ("W0_balanced", Shape(8, 5, 3, 0), "8 experts do not divide over 3 ranks"),
        ("W0_balanced", Shape(8, 5, 3, 0), "top_k is 5, expected 1 to 4, half of the experts"),
        ("W0_balanced", Shape(8, 5, 3, 0), "tokens is 0, expected at least 1"),
    ],
)
def test_all_that_is_wrong_is_said(name, shape, message):
    with pytest.raises(RoutingError, match=message):
        workload(name, 0, 1, shape)
