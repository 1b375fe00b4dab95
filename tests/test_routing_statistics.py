import numpy as np
import pytest

from simulator.routing import Placement, contiguous
from simulator.routing.recording import Batch, Recording
from simulator.routing.statistics import coactivation, drift, fan_out, sampled, togetherness
from simulator.routing.tokens import draw_tokens
from simulator.routing.trace import Trace, gather


def trace(*batches: Batch) -> Trace:
    found = gather(Recording("t", lambda hear: iter(batches)))
    assert found is not None
    return found


def test_drift_by_hand():
    # Shares 3/4 1/4, then 1/4 3/4, then 1/2 1/2: half the sum of differences is 1/2, then 1/4.
    steps = [Batch(0, step, counts=np.array(row)) for step, row in enumerate(([300, 100], [100, 300], [200, 200]))]
    found = drift(trace(*steps))
    assert found is not None
    assert (found.next_window.tolist(), found.first_to_last.tolist()) == ([0.375], [0.25])
    # Two experts of share 1/2: 0.5 * sqrt(2 / pi) * 2 * 0.5 * sqrt(2 / 400).
    assert found.by_chance == pytest.approx([0.5 * (2 / np.pi) ** 0.5 * (2 / 400) ** 0.5])


def test_tokens_of_a_standing_popularity_drift_by_chance_only():
    rng, popularity = np.random.default_rng(0), np.random.default_rng(1).lognormal(size=64)
    found = drift(trace(*(Batch(0, step, picks=draw_tokens(popularity, 2000, 1, rng)) for step in range(20))))
    assert found is not None
    assert found.next_window == pytest.approx(found.by_chance, rel=0.05)


def test_a_single_window_does_not_drift():
    assert drift(trace(Batch(0, counts=np.ones(3)))) is None


def test_pairs_by_hand():
    pairs = coactivation(np.array([[0, 1, 2], [0, 1, -1], [2, -1, -1]]), 3)
    assert pairs.tolist() == [[0, 2, 1], [2, 0, 1], [1, 1, 0]]


def test_togetherness_is_near_nothing_for_independent_picks_and_large_for_couples():
    rng = np.random.default_rng(0)
    alone = draw_tokens(np.ones(32), 4000, 2, rng)
    couples = 2 * rng.integers(0, 16, (4000, 1)) + np.array([0, 1])
    apart = togetherness(trace(Batch(0, picks=alone)))
    bound = togetherness(trace(Batch(0, picks=couples)))
    assert apart is not None
    assert bound is not None
    assert abs(apart[0]) < 0.03
    # Of 496 equally likely pairs, couples are 16: all but 16/496 of the pairs are elsewhere, less what chance moves.
    assert bound[0] == pytest.approx(1 - 16 / 496, abs=0.2)
    assert togetherness(trace(Batch(0, counts=np.ones(3)))) is None


def test_fan_out_by_hand():
    # Eight experts on four ranks of two nodes. Token one needs ranks 0 0 3, token two ranks 1 1 1 and nothing else.
    picks = np.array([[0, 1, 6], [2, 3, -1], [-1, -1, -1]])
    found = fan_out([Batch(5, picks=picks), Batch(9, picks=picks)], [5], contiguous(1, 8, 4), ranks_per_node=2)
    assert (found.ranks_per_token.tolist(), found.nodes_per_token.tolist()) == ([1.5], [1.5])


def test_copies_serve_tokens_in_turn():
    placement = Placement(np.array([[[0, 1], [0, 2]]]), 3)
    # Expert 0 is on both ranks: the first token finds 0 and 1 on rank 0, the second is sent to both ranks.
    found = fan_out([Batch(0, picks=np.array([[0, 1], [0, 1]]))], [0], placement, ranks_per_node=1)
    assert found.ranks_per_token.tolist() == [1.5]


def test_the_sample_of_a_trace_estimates_its_fan_out():
    rng = np.random.default_rng(0)
    popularity = rng.lognormal(size=64)
    batches = [Batch(3, step, picks=draw_tokens(popularity, 5000, 8, rng)) for step in range(10)]
    placement = contiguous(1, 64, 16)
    exact, estimate = (fan_out(part, [3], placement, 4) for part in (batches, sampled(trace(*batches))))
    assert estimate.nodes_per_token == pytest.approx(exact.nodes_per_token, rel=0.01)
    assert estimate.ranks_per_token == pytest.approx(exact.ranks_per_token, rel=0.01)
