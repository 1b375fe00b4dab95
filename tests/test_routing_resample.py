from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.routing import RoutingTable, read_table, resample
from simulator.shipped import shipped

RECORDINGS = Path(__file__).parents[1].parent / "shared" / "facts" / "routing"
WORKLOADS = ("prefill_in1024", "prefill_in4096", "decode_in500out1500", "decode_in1000out1000")


def recording(workload: str) -> RoutingTable:
    path = RECORDINGS / f"deepseek-v3_{workload}.json"
    if not path.is_file():
        pytest.skip(f"{path.name} is not beside this checkout; its licence does not let it be shipped")
    return read_table(path)


def olmoe(domain: str) -> RoutingTable:
    return read_table(shipped("scenarios", "traces", f"olmoe-{domain}.json"))


def skew(table: RoutingTable, degrees: tuple[int, ...]) -> np.ndarray:
    """Rank max/mean at each EP degree, then the hottest expert's, then gini, averaged over layers."""
    rank = [table.rank_max_over_mean(ep) for ep in degrees]
    return np.array([*rank, table.expert_max_over_mean().mean(), table.gini().mean()])


def change(table: RoutingTable, source: RoutingTable, degrees: tuple[int, ...]) -> np.ndarray:
    return skew(table, degrees) / skew(source, degrees) - 1


def test_the_same_shape_is_the_same_table():
    source = olmoe("github")
    table = resample(source, 3, 64, 8, np.random.default_rng(0))
    assert table.counts.tobytes() == source.counts.tobytes()
    assert (table.name, table.source, table.recorded_layers) == (source.name, source.source, source.recorded_layers)


def test_layers_follow_the_source_at_the_same_depth():
    source = RoutingTable(np.array([[1.0, 1.0], [1.0, 3.0], [1.0, 5.0]]), "three", recorded_layers=(0, 7, 15))
    table = resample(source, 6, 2, 1, np.random.default_rng(0))
    assert table.recorded_layers == (0, 0, 7, 7, 15, 15)
    assert np.sort(table.counts) == pytest.approx(np.array([[1, 1], [1, 1], [1, 3], [1, 3], [1, 5], [1, 5]]))
    assert table.source == "resampled from 3 layers of 2 experts to 6 of 2"
    assert resample(source, 1, 2, 1, np.random.default_rng(0)).counts.tolist() == [[1, 3]]


def test_the_first_follower_keeps_experts_in_place_and_the_next_moves_them_within_blocks():
    source = olmoe("github")
    table = resample(source, 6, 64, 8, np.random.default_rng(0))
    assert (table.counts[0::2] == source.counts).all()
    assert (table.counts[1::2] != source.counts).any()
    assert table.rank_load(8) == pytest.approx(np.repeat(source.rank_load(8), 2, axis=0))


def test_the_law_is_interpolated_in_log():
    source = RoutingTable(np.array([[1.0, 4.0]]), "two")
    # Quantiles at 1/8, 3/8, 5/8, 7/8 between 1 at 1/4 and 4 at 3/4: 1, sqrt 2, 2 sqrt 2, 4, scaled to the sum of 5.
    law = np.array([1, 2**0.5, 2 * 2**0.5, 4]) * 5 / (5 + 3 * 2**0.5)
    table = resample(source, 1, 4, 1, np.random.default_rng(0))
    assert np.sort(table.counts[0]) == pytest.approx(law)


def test_balanced_stays_balanced():
    source = RoutingTable(np.ones((2, 64)), "balanced")
    assert resample(source, 5, 896, 16, np.random.default_rng(0)).counts == pytest.approx(np.full((5, 896), 64 / 896))


def test_an_expert_never_chosen_is_rare_afterwards():
    source = RoutingTable(np.array([[0.0, 2.0, 4.0]]), "one idle")
    counts = resample(source, 2, 3, 1, np.random.default_rng(0)).counts
    assert np.sort(counts[1]) == pytest.approx(np.array([1.0, 2.0, 4.0]) * 6 / 7)


def test_no_expert_above_one_in_top_k():
    table = resample(olmoe("arxiv"), 4, 16, 8, np.random.default_rng(0))
    assert table.popularity.max() == pytest.approx(1 / 8)
    with pytest.raises(ValueError, match="top_k is 8, but a token can pick 1 to 4 different experts"):
        resample(olmoe("arxiv"), 4, 4, 8, np.random.default_rng(0))


@given(
    shape=st.tuples(st.integers(1, 9), st.integers(4, 200)),
    wanted=st.tuples(st.integers(1, 12), st.integers(4, 200)),
    top_k=st.integers(1, 4),
    seed=st.integers(0, 2**63 - 1),
)
def test_any_shape_keeps_sums_bounds_and_determinism(shape, wanted, top_k, seed):
    rng = np.random.default_rng(seed)
    source = RoutingTable(np.exp(rng.standard_normal(shape)), "drawn")
    table = resample(source, *wanted, top_k, np.random.default_rng(seed))
    assert table.counts.shape == wanted
    followed = (2 * np.arange(wanted[0]) + 1) * shape[0] // (2 * wanted[0])
    assert table.counts.sum(axis=1) == pytest.approx(source.counts.sum(axis=1)[followed])
    assert table.popularity.max() <= (1 + 1e-12) / top_k
    assert resample(source, *wanted, top_k, np.random.default_rng(seed)).counts.tobytes() == table.counts.tobytes()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_deepseek_v3_in_its_own_shape(workload):
    source = recording(workload)
    table = resample(source, 58, 256, 8, np.random.default_rng(0))
    assert table.counts.tobytes() == source.counts.tobytes()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_deepseek_v3_with_more_layers(workload):
    source = recording(workload)
    assert (
        abs(change(resample(source, 92, 256, 8, np.random.default_rng(0)), source, (8, 16, 32, 64, 128))).max() < 0.035
    )


@pytest.mark.parametrize(("step", "rank_error", "hottest_error"), [(2, 0.07, 0.14), (4, 0.16, 0.27)])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_deepseek_v3_rebuilt_from_a_part_of_its_experts(workload, step, rank_error, hottest_error):
    source = recording(workload)
    parts = [RoutingTable(source.counts[:, first::step], "part") for first in range(step)]
    rebuilt = [
        change(resample(part, 58, 256, 8, np.random.default_rng(0)), source, (8, 16, 32, 64, 128)) for part in parts
    ]
    *rank, hottest, gini = np.mean(rebuilt, axis=0)
    assert np.abs(rank).max() < rank_error
    assert -hottest_error < hottest < 0
    assert abs(gini) < 0.02


@pytest.mark.parametrize("workload", WORKLOADS)
def test_deepseek_v3_with_896_experts_at_equal_ep(workload):
    source = recording(workload)
    table = resample(source, 58, 896, 16, np.random.default_rng(0))
    ep8, ep16, ep32, ep64, ep128, hottest, gini = change(table, source, (8, 16, 32, 64, 128))
    assert max(abs(ep8), abs(ep16), abs(ep32)) < 0.04
    assert -0.15 < ep64 < -0.06
    assert -0.28 < ep128 < -0.15
    assert max(abs(hottest), abs(gini)) < 0.005


@pytest.mark.parametrize("workload", WORKLOADS)
def test_deepseek_v3_with_896_experts_at_equal_experts_per_rank(workload):
    source = recording(workload)
    table = resample(source, 58, 896, 16, np.random.default_rng(0))
    for ep in (8, 16, 32, 64, 128):
        assert 1.10 < table.rank_max_over_mean(ep * 7 // 2) / source.rank_max_over_mean(ep) < 1.40


@pytest.mark.parametrize("domain", ["arxiv", "book", "c4", "github", "tulu", "wikipedia"])
def test_olmoe_with_896_experts(domain):
    source = olmoe(domain)
    table = resample(source, 92, 896, 16, np.random.default_rng(0))
    ep64, hottest, gini = change(table, source, (64,))
    # OLMoE at EP64 has one expert a rank and the target 14: at equal experts per rank it is the hottest expert itself.
    assert -0.70 < ep64 < -0.45
    assert abs(hottest) < 0.01
    assert abs(gini) < 0.01
