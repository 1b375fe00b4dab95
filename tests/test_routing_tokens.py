import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.routing.recording import Batch, Recording
from simulator.routing.statistics import togetherness
from simulator.routing.token_resampling import resample_tokens
from simulator.routing.tokens import draw_tokens
from simulator.routing.trace import gather


def distinct(picks: np.ndarray) -> bool:
    return bool((np.diff(np.sort(picks, axis=1), axis=1) > 0).all())


def together(picks: np.ndarray) -> float:
    trace = gather(Recording("t", lambda hear: iter([Batch(0, picks=picks)])))
    assert trace is not None
    found = togetherness(trace)
    assert found is not None
    return float(found[0])


@given(experts=st.integers(1, 80), seed=st.integers(0, 2**32), data=st.data())
def test_drawn_tokens_pick_different_experts(experts, seed, data):
    top_k = data.draw(st.integers(1, experts))
    rng = np.random.default_rng(seed)
    picks = draw_tokens(rng.lognormal(sigma=2, size=experts), 20, top_k, rng)
    assert picks.shape == (20, top_k)
    assert distinct(picks)


def test_each_expert_is_drawn_by_its_share():
    rng = np.random.default_rng(0)
    popularity = np.array([5.0, 3.0, 1.0, 1.0])
    found = np.bincount(draw_tokens(popularity, 100_000, 2, rng).ravel(), minlength=4) / 100_000
    # Expert 0 is half of the assignments, so every token picks it.
    assert found[0] == 1.0
    assert found[1:] == pytest.approx([0.6, 0.2, 0.2], abs=0.005)


def test_no_token_draws_nothing():
    assert draw_tokens(np.ones(4), 0, 2, np.random.default_rng(0)).shape == (0, 2)


COUPLES = 2 * np.random.default_rng(0).integers(0, 16, (4000, 1)) + np.array([0, 1])


@pytest.mark.parametrize(("experts", "top_k"), [(32, 2), (32, 4), (64, 2), (128, 4), (16, 2)])
def test_carried_tokens_pick_different_experts_near_the_wanted_popularity(experts, top_k):
    rng = np.random.default_rng(1)
    recorded = draw_tokens(rng.lognormal(sigma=0.7, size=32), 4000, 2, rng)
    law = np.quantile(np.bincount(recorded.ravel(), minlength=32), (np.arange(experts) + 0.5) / experts)
    popularity = rng.permutation(law / law.sum())
    picks = resample_tokens(recorded, popularity, 32, 20_000, top_k, rng)
    assert picks.shape == (20_000, top_k)
    assert distinct(picks)
    found = np.bincount(picks.ravel(), minlength=experts) / picks.size
    assert 0.5 * np.abs(found - popularity).sum() < 0.1


@pytest.mark.parametrize(("experts", "least"), [(32, 0.7), (64, 0.5)])
def test_experts_that_go_together_still_do(experts, least):
    rng = np.random.default_rng(2)
    picks = resample_tokens(COUPLES, np.ones(experts) / experts, 32, 4000, 2, rng)
    assert together(picks) > least
    assert abs(together(draw_tokens(np.ones(experts), 4000, 2, rng))) < 0.03


def test_missing_picks_are_filled():
    recorded = np.array([[0, -1, -1], [1, 2, -1]])
    picks = resample_tokens(recorded, np.ones(8), 3, 50, 4, np.random.default_rng(0))
    assert distinct(picks)
    assert picks.min() >= 0
    with pytest.raises(ValueError, match="top_k is 9, but a token can pick 1 to 8 different experts"):
        resample_tokens(recorded, np.ones(8), 3, 50, 9, np.random.default_rng(0))
