from pathlib import Path

import numpy as np
import pytest

from simulator.routing import RoutingTable, read_table

RECORDINGS = Path(__file__).parents[1].parent / "shared" / "facts" / "routing"

SMALL = RoutingTable(np.array([[4.0, 2.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]]), "small")

# Mean over the 58 MoE layers of DeepSeek-V3 recordings: expert max/mean, gini, Zipf exponent, top 20 % share, then
# rank max/mean at EP8, EP32, EP64 and EP128, experts placed contiguously.
DEEPSEEK_V3 = {
    "prefill_in4096": (8.12, 0.45, 0.80, 0.51, 2.07, 3.04, 3.77, 5.36),
    "decode_in1000out1000": (5.56, 0.35, 0.59, 0.43, 2.01, 2.88, 3.36, 4.26),
    "decode_in500out1500": (5.76, 0.36, 0.60, 0.44, 2.06, 2.99, 3.52, 4.43),
}


def recording(name: str, domain: str = "") -> RoutingTable:
    if not (RECORDINGS / name).is_file():
        pytest.skip(f"{name} is not beside this checkout, and is not shipped with it")
    return read_table(f"{RECORDINGS / name}{domain}")


def test_expert_max_over_mean_is_by_layer():
    assert SMALL.expert_max_over_mean().tolist() == [2.0, 1.0]


def test_gini_of_4_2_1_1_is_10_of_32():
    assert SMALL.gini().tolist() == [10 / 32, 0.0]


def test_gini_of_one_expert_for_all():
    assert RoutingTable(np.array([[0.0, 0.0, 0.0, 5.0]]), "one").gini().tolist() == [0.75]


def test_zipf_exponent_of_a_harmonic_series_is_one():
    table = RoutingTable(np.array([[3.0, 12.0, 4.0, 6.0], [5.0, 0.0, 0.0, 0.0], [7.0, 7.0, 0.0, 7.0]]), "harmonic")
    assert table.zipf_exponent() == pytest.approx([1.0, 0.0, 0.0], abs=1e-12)


def test_top_share_takes_at_least_one_expert():
    assert SMALL.top_share().tolist() == [0.5, 0.25]
    assert SMALL.top_share(0.5).tolist() == [0.75, 0.5]


def test_entropy_in_bits():
    assert SMALL.entropy_bits().tolist() == [1.75, 2.0]
    assert RoutingTable(np.array([[8.0, 0.0]]), "one").entropy_bits().tolist() == [0.0]


def test_rank_load_places_experts_contiguously():
    assert SMALL.rank_load(2).tolist() == [[6.0, 2.0], [4.0, 4.0]]
    assert SMALL.rank_max_over_mean(2) == 1.25
    assert SMALL.rank_max_over_mean(1) == 1.0
    assert SMALL.rank_max_over_mean(4) == 1.5


@pytest.mark.parametrize(
    ("ep", "hint"), [(3, "nearest are 2 and 4"), (0, "nearest is 1"), (8, "nearest is 4"), (-2, "nearest is 1")]
)
def test_ep_must_divide_the_experts(ep, hint):
    with pytest.raises(ValueError, match=f"ep is {ep}, but it must divide the 4 experts: {hint}"):
        SMALL.rank_load(ep)


def test_a_table_is_frozen_and_apart_from_what_it_was_made_of():
    counts = np.ones((1, 2))
    table = RoutingTable(counts, "frozen")
    counts[0, 0] = 9.0
    assert table.counts.tolist() == [[1.0, 1.0]]
    with pytest.raises(ValueError, match="read-only"):
        table.counts[0, 0] = 9.0


@pytest.mark.parametrize("counts", [[[1.0, -1.0]], [[np.nan, 1.0]], [[np.inf, 1.0]], [[0.0, 0.0]], [1.0], [[]]])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(ValueError, match=r"counts|assignments"):
        RoutingTable(np.array(counts), "bad")


@pytest.mark.parametrize("name", DEEPSEEK_V3)
def test_deepseek_v3_skew_is_as_measured(name):
    table = recording(f"deepseek-v3_{name}.json")
    by_layer = (table.expert_max_over_mean(), table.gini(), table.zipf_exponent(), table.top_share())
    found = [row.mean() for row in by_layer] + [table.rank_max_over_mean(ep) for ep in (8, 32, 64, 128)]
    assert found == pytest.approx(DEEPSEEK_V3[name], abs=0.0051)


def test_deepseek_v3_long_prefill_layer_by_layer():
    table = recording("deepseek-v3_prefill_in4096.json")
    assert (table.layers, table.experts) == (58, 256)
    assert table.recorded_layers == tuple(range(3, 61))
    expert = table.expert_max_over_mean()
    assert (round(expert.min(), 1), round(expert.max(), 1)) == (4.0, 13.4)
    rank = table.rank_load(64)
    rank = rank.max(axis=1) / rank.mean(axis=1)
    assert (round(rank.min(), 1), round(rank.max(), 1)) == (1.8, 7.9)


def test_mixtral_is_nearly_balanced():
    domains = ("arxiv", "book", "c4", "github", "wikipedia")
    hottest = [recording("mixtral-8x7b.json", f"#{domain}").expert_max_over_mean() for domain in domains]
    assert round(float(np.min(hottest)), 2) == 1.08
    assert round(float(np.max(hottest)), 2) == 1.33
