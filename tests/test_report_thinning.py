import numpy as np

from simulator.report.thinning import envelope, fullest


def test_short_curves_are_kept_whole():
    time = np.arange(6)
    assert fullest(time, time, 4).tolist() == list(range(6))
    assert envelope(time, time, 2).tolist() == list(range(6))


def test_each_span_keeps_its_highest_and_both_ends_stay():
    time = np.arange(10)
    value = np.array([0, 5, 1, 1, 1, 9, 2, 2, 2, 0])
    assert fullest(time, value, 2).tolist() == [0, 1, 5, 9]


def test_the_envelope_keeps_the_lowest_too():
    time = np.arange(10)
    value = np.array([3, 5, 1, 4, 4, 9, 2, 7, 8, 6])
    assert envelope(time, value, 2).tolist() == [0, 1, 2, 5, 6, 9]


def test_spans_without_points_are_no_trouble():
    time = np.array([0, 1, 2, 3, 4, 5, 6, 100])
    assert fullest(time, np.arange(8), 4).tolist() == [0, 6, 7]
