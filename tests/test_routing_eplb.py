from pathlib import Path

import numpy as np
import pytest

from simulator.routing import RoutingTable, Setting, apply_policy, read_table
from simulator.routing.policies.eplb import plan
from simulator.routing.table import max_over_mean

RECORDINGS = Path(__file__).parents[1].parent / "shared" / "facts" / "routing"

# The example of the published program, whose README prints the result: 2 layers of 12 experts, 16 slots, 4 groups,
# 2 nodes, 8 GPUs.
LOADS = [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]]
PUBLISHED = [[5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]]


def recording(workload: str) -> RoutingTable:
    path = RECORDINGS / f"deepseek-v3_{workload}.json"
    if not path.is_file():
        pytest.skip(f"{path.name} is not beside this checkout; its licence does not let it be shipped")
    return read_table(path)


def busiest(planned: RoutingTable, replayed: RoutingTable, ranks: int) -> float:
    """Rank max/mean with 288 slots, averaged over layers."""
    return float(max_over_mean(plan(planned, 288, ranks).rank_load(replayed)).mean())


def test_the_published_example_of_hierarchical_balancing():
    table = RoutingTable(np.array(LOADS, dtype=float), "readme")
    assert plan(table, 16, ranks=8, groups=4, nodes=2).slots.reshape(2, 16).tolist() == PUBLISHED


def test_global_balancing_by_hand():
    # Loads 8, 2, 1, 1 and two spare slots: expert 0 gets both (8, then 4 a copy), 8/3 each. Packed on two ranks of
    # three: 8/3 left, 8/3 right, 8/3 left (equal totals go to the first), 2 right, 1 right (full), 1 left.
    table = RoutingTable(np.array([[8.0, 2.0, 1.0, 1.0]]), "t")
    placement = plan(table, 6, 2)
    assert placement.slots.tolist() == [[[0, 0, 3], [0, 1, 2]]]
    assert placement.rank_load(table)[0] == pytest.approx([19 / 3, 17 / 3])


def test_the_hierarchy_keeps_groups_on_a_node():
    table = RoutingTable(np.random.default_rng(0).lognormal(size=(3, 64)), "t")
    nodes = plan(table, 80, ranks=16, groups=8, nodes=2).slots.reshape(3, 2, 40)
    for layer in nodes:
        first, second = (set((node // 8).tolist()) for node in layer)
        assert (len(first), len(second), first & second) == (4, 4, set())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((288, 50, 1, 1), "slots 288 do not divide over ranks 50"),
        ((288, 32, 5, 2), "experts 256 do not divide over groups 5; groups 5 do not divide over nodes 2"),
        ((224, 32, 1, 1), "224 slots do not hold 256 experts"),
    ],
)
def test_all_that_does_not_divide_is_said(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan(RoutingTable(np.ones((1, 256)), "t"), *arguments)


@pytest.mark.parametrize(
    ("workload", "ep32", "ep72", "ep144"),
    [
        ("decode_in1000out1000", 1.007, 1.023, 1.161),
        ("decode_in500out1500", 1.007, 1.023, 1.173),
        ("prefill_in4096", 1.006, 1.023, 1.264),
    ],
)
def test_a_fresh_plan_of_deepseek_v3_is_as_even_as_published(workload, ep32, ep72, ep144):
    table = recording(workload)
    assert [round(busiest(table, table, ranks), 3) for ranks in (32, 72, 144)] == [ep32, ep72, ep144]


@pytest.mark.parametrize(
    ("planned", "replayed", "low", "high"),
    [
        ("decode_in1000out1000", "decode_in500out1500", 1.05, 1.06),
        ("decode_in1000out1000", "prefill_in4096", 1.44, 1.45),
        ("decode_in500out1500", "prefill_in4096", 1.505, 1.52),
        ("prefill_in4096", "decode_in500out1500", 1.25, 1.365),
    ],
)
def test_a_stale_plan_is_as_uneven_as_published(planned, replayed, low, high):
    assert low <= busiest(recording(planned), recording(replayed), 32) <= high


def test_without_a_number_each_rank_has_one_slot_more_than_it_needs():
    table = RoutingTable(np.random.default_rng(0).lognormal(size=(2, 60)), "t")
    assert apply_policy("eplb", table, table, Setting(8, 4, 512)).placement.slots.shape == (2, 8, 9)
    assert apply_policy("eplb", table, table, Setting(12, 4, 512)).placement.slots.shape == (2, 12, 6)


def test_the_policy_turns_a_plan_into_whole_rows():
    table = recording("prefill_in4096")
    outcome = apply_policy("eplb", table, table, Setting(32, 8, 4096))
    assert outcome.rows.shape == (1, 58, 32, 9)
    assert (outcome.rows.sum(axis=(0, 2, 3)) == 32 * 4096 * 8).all()
    assert outcome.rank_max_over_mean == pytest.approx(1.006, abs=0.0005)
