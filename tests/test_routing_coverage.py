from math import comb

import numpy as np
import pytest

from simulator.routing.coverage import reach
from simulator.routing.tokens import draw_tokens


def test_an_even_popularity_is_choosing_without_replacement():
    # 8 of 256 experts, a quarter of them in a node: none of the 8 among 64 in C(192, 8) of C(256, 8) ways.
    assert reach(np.ones((4, 64)), 8) == pytest.approx([1 - comb(192, 8) / comb(256, 8)] * 4)


def test_all_experts_chosen_reach_every_set_and_one_of_them_its_share():
    assert reach(np.ones((2, 2)), 4) == pytest.approx([1, 1])
    assert reach(np.ones((4, 2)), 1) == pytest.approx([0.25] * 4)


def test_a_single_set_is_always_reached():
    assert reach(np.ones((1, 16)), 3) == pytest.approx([1])


def test_skewed_experts_reach_as_sampled_tokens_do():
    rng = np.random.default_rng(7)
    popularity = rng.lognormal(0, 1, (8, 8))
    tokens = draw_tokens(popularity.ravel(), 20_000, 6, rng) // 8
    sampled = [(tokens == number).any(axis=1).mean() for number in range(8)]
    assert reach(popularity, 6) == pytest.approx(sampled, abs=0.03)


def test_more_choices_than_experts_are_refused():
    with pytest.raises(ValueError, match="top_k is 5, but there are 4 experts"):
        reach(np.ones((2, 2)), 5)
