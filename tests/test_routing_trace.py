import numpy as np
import pytest

from simulator.routing import trace as module
from simulator.routing.recording import Batch, Recording
from simulator.routing.trace import SAMPLE_TOKENS, Trace, gather


def gathered(*batches: Batch) -> Trace:
    found = gather(Recording("t", lambda hear: iter(batches)))
    assert found is not None
    return found


def test_counts_by_step_rank_layer_and_expert():
    found = gathered(
        Batch(4, step=2, source=1, picks=np.array([[0, 1], [0, 2]])),
        Batch(4, step=2, source=1, counts=np.array([0, 0, 0, 5])),
        Batch(7, step=3, source=0, counts=np.array([1])),
    )
    assert found.counts.tolist() == [
        [[[0] * 4, [0] * 4], [[2, 1, 1, 5], [0] * 4]],
        [[[0] * 4, [1, 0, 0, 0]], [[0] * 4, [0] * 4]],
    ]
    assert (found.first_steps, found.sources, found.layers, found.window_steps) == ((2, 3), (0, 1), (4, 7), 1)
    assert found.table.counts.tolist() == [[2, 1, 1, 5], [1, 0, 0, 0]]
    assert found.table.recorded_layers == (4, 7)


def test_layers_without_assignments_are_left_out():
    found = gathered(Batch(0, counts=np.zeros(3)), Batch(1, counts=np.ones(3)))
    assert found.layers == (1,)
    assert gather(Recording("t", lambda hear: iter([Batch(0, counts=np.zeros(3))]))) is None


def test_windows_widen_until_the_counts_fit(monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 30)
    found = gathered(*(Batch(0, step=step, counts=np.array([step, 0, 1])) for step in range(40)))
    assert (found.window_steps, found.counts.shape) == (4, (10, 1, 1, 3))
    assert found.first_steps == tuple(range(0, 40, 4))
    assert found.counts[3, 0, 0].tolist() == [12 + 13 + 14 + 15, 0, 4]


def test_sources_of_different_steps_count_as_the_whole_they_make(monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 30)
    # Ten cells, but as a dense array ten steps of ten sources would be a hundred: windows of four steps are left.
    found = gathered(*(Batch(0, step=n, source=n, counts=np.ones(1)) for n in range(10)))
    assert found.counts.shape == (3, 10, 1, 1)
    assert found.counts.sum() == 10


def test_ranks_are_joined_when_windows_no_longer_can_be(monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 12)
    found = gathered(*(Batch(0, step=n % 2, source=n, counts=np.array([n, 1, 0])) for n in range(10)))
    assert (found.counts.shape, found.sources, found.window_steps) == ((1, 3, 1, 3), (0, 4, 8), 2)
    assert found.counts[0, :, 0].tolist() == [[0 + 1 + 2 + 3, 4, 0], [4 + 5 + 6 + 7, 4, 0], [17, 2, 0]]


def test_the_sample_is_uniform_over_batches_and_of_bounded_size():
    batches = [Batch(0, step=step, picks=np.full((1000, 1), step)) for step in range(50)]
    picks = gathered(*batches).picks
    assert picks is not None
    assert picks.shape == (1, SAMPLE_TOKENS, 1)
    share = np.bincount(picks.ravel(), minlength=50)
    assert share.mean() == SAMPLE_TOKENS / 50
    # Hypergeometric: a standard deviation of 8.6 around 81.9.
    assert np.abs(share - 81.92).max() < 4 * 8.6


def test_tokens_of_different_width_and_layers_of_different_length_fit_together():
    found = gathered(
        Batch(0, picks=np.array([[0, 1]])),
        Batch(0, picks=np.array([[2]])),
        Batch(1, picks=np.array([[1, 2], [0, 1], [2, 0]])),
    )
    assert found.picks is not None
    assert found.picks.shape == (2, 2, 2)
    assert sorted(found.picks[0].tolist()) == [[0, 1], [2, -1]]


def test_a_layer_without_tokens_leaves_no_sample():
    assert gathered(Batch(0, picks=np.array([[0]])), Batch(1, counts=np.ones(2))).picks is None


def test_windows_as_tables():
    found = gathered(Batch(0, step=0, counts=np.array([1.0, 3.0])), Batch(0, step=1, counts=np.array([2.0, 2.0])))
    assert [table.counts.tolist() for table in found.by_window] == [[[1, 3]], [[2, 2]]]
    assert found.by_window[1].name == "t, from step 1"


def test_the_same_recording_gives_the_same_trace():
    rng = np.random.default_rng(0)
    batches = [Batch(0, step=step, picks=rng.integers(0, 9, (900, 3))) for step in range(9)]
    first, second = gathered(*batches), gathered(*batches)
    assert first.counts.tobytes() == second.counts.tobytes()
    assert first.picks is not None
    assert second.picks is not None
    assert first.picks.tobytes() == second.picks.tobytes()
    assert first.table.rank_max_over_mean(3) == pytest.approx(1, abs=0.02)
