import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.routing import synthesise


def test_sigma_zero_is_exactly_balanced():
    table = synthesise(3, 896, 16, 0.0, np.random.default_rng(1))
    assert (table.counts == 1.0).all()
    assert table.rank_max_over_mean(64) == 1.0
    assert table.rank_load(64).min() == 14.0


def test_log_popularity_has_the_spread_asked_for():
    table = synthesise(92, 896, 16, 0.7, np.random.default_rng(1))
    assert np.log(table.counts).std(axis=1).mean() == pytest.approx(0.7, abs=0.005)
    # The Gini coefficient of a log-normal law is erf(sigma / 2); erf(0.35) = 0.3794.
    assert table.gini().mean() == pytest.approx(0.3794, abs=0.003)


def test_a_rank_with_more_experts_is_nearer_the_mean():
    table = synthesise(92, 896, 16, 0.7, np.random.default_rng(1))
    load = [table.rank_max_over_mean(ep) for ep in (8, 32, 128, 896)]
    assert load == sorted(load)
    assert load[0] < 1.15


@given(sigma=st.floats(0, 5), seed=st.integers(0, 2**63 - 1), top_k=st.integers(1, 24))
def test_sums_hold_and_no_expert_is_above_its_bound(sigma, seed, top_k):
    table = synthesise(2, 24, top_k, sigma, np.random.default_rng(seed))
    assert table.counts.sum(axis=1) == pytest.approx([24.0, 24.0])
    assert table.counts.max() <= 24 / top_k * (1 + 1e-12)
    again = synthesise(2, 24, top_k, sigma, np.random.default_rng(seed))
    assert again.counts.tobytes() == table.counts.tobytes()
