from math import comb

import numpy as np
import pytest

from simulator.routing.coverage import Choice, reach, reach_of_tokens
from simulator.routing.tokens import draw_tokens


def test_an_even_popularity_is_choosing_without_replacement():
    # 8 of 256 experts, a quarter of them in a node: none of the 8 among 64 in C(192, 8) of C(256, 8) ways.
    assert reach(np.ones((1, 4, 64)), Choice(8))[0] == pytest.approx([1 - comb(192, 8) / comb(256, 8)] * 4)


def test_all_experts_chosen_reach_every_set_and_one_of_them_its_share():
    assert reach(np.ones((1, 2, 2)), Choice(4))[0] == pytest.approx([1, 1])
    assert reach(np.ones((1, 4, 2)), Choice(1))[0] == pytest.approx([0.25] * 4)


def test_a_single_set_is_always_reached():
    assert reach(np.ones((1, 1, 16)), Choice(3))[0] == pytest.approx([1])


def test_skewed_experts_reach_as_sampled_tokens_do():
    rng = np.random.default_rng(7)
    popularity = rng.lognormal(0, 1, (8, 8))
    tokens = draw_tokens(popularity.ravel(), 20_000, 6, rng) // 8
    sampled = [(tokens == number).any(axis=1).mean() for number in range(8)]
    assert reach(popularity[None], Choice(6))[0] == pytest.approx(sampled, abs=0.03)


def test_more_choices_than_experts_are_refused():
    with pytest.raises(ValueError, match="top_k is 5, but there are 4 experts"):
        reach(np.ones((1, 2, 2)), Choice(5))


def test_a_token_keeps_within_its_best_groups():
    """DeepSeek-V3: eight experts in four of eight nodes of 32, on ranks of four."""
    choice = Choice(8, groups=8, best=4)
    node, rank = ((1 - comb(128 - held, 8) / comb(128, 8)) / 2 for held in (32, 4))
    assert reach(np.ones((1, 8, 32)), choice)[0] == pytest.approx([node] * 8)
    assert reach(np.ones((1, 64, 4)), choice)[0] == pytest.approx([rank] * 64)
    assert 8 * node == pytest.approx(3.629, abs=0.001)


def test_sets_of_whole_groups():
    """Two groups of a set: of four, two are chosen, both, one or none of the set's with chances 1, 4 and 1 of 6."""
    missed = (4 * comb(8, 3) / comb(16, 3) + 1) / 6
    assert reach(np.ones((1, 2, 16)), Choice(3, groups=4, best=2))[0] == pytest.approx([1 - missed] * 2)


def test_groups_are_chosen_as_they_are_liked():
    popularity = np.repeat([[3.0], [1.0], [1.0], [1.0]], 8, axis=1)
    found = reach(popularity[None], Choice(4, groups=4, best=2))[0]
    assert found[0] > found[1] == found[2] == found[3]
    assert found.sum() <= 2


def test_recorded_tokens_are_counted_in_each_set_once():
    # Four tokens of two experts on three ranks; one token has a single expert, one none at all.
    destinations = np.array([[0, 0], [0, 1], [2, -1], [-1, -1]])
    assert reach_of_tokens(destinations, 3) == pytest.approx([2 / 3, 1 / 3, 1 / 3])
