"""What bounds read off schedules, worked out by hand."""

import numpy as np

from simulator.planner.orders import Order
from simulator.planner.splits import NO_OVERLAP, OVERLAP, SCHEDULES


def test_1f1b_holds_as_many_as_there_are_stages_to_the_end() -> None:
    order = Order.of(4, 1, SCHEDULES.index("1f1b"), NO_OVERLAP)
    assert order.alive(np.array([8, 2])).tolist() == [[[4], [3], [2], [1]], [[2], [2], [2], [1]]]
    assert order.ahead.tolist() == [0, 1, 2, 3]
    assert order.returns
    assert order.fullest_before_backward


def test_gpipe_holds_all() -> None:
    order = Order.of(2, 1, SCHEDULES.index("gpipe"), NO_OVERLAP)
    assert order.alive(np.array([100])).tolist() == [[[100], [100]]]


def test_one_stage_of_pairs_has_a_forward_and_a_backward_pass_alone() -> None:
    # F0 F1+ B0 F2+ B1 B2: before each pair one micro-batch is held.
    order = Order.of(1, 1, SCHEDULES.index("1f1b"), OVERLAP)
    ahead, back = order.unpaired(np.array([3, 1000]))
    assert ahead.tolist() == back.tolist() == [[[1]], [[1]]]
    assert order.alive(np.array([3])).tolist() == [[[1]]]


def test_dualpipe_begins_at_both_ends_and_ends_with_weights() -> None:
    order = Order.of(4, 1, SCHEDULES.index("dualpipe"), NO_OVERLAP)
    assert order.held.tolist() == [[0, 3], [1, 2], [2, 1], [3, 0]]
    assert order.ahead.tolist() == [0, 1, 1, 0]
    assert not order.returns
    # p + 1 micro-batches, as DeepSeek-V3's table 2 has it.
    assert order.alive(np.array([16])).sum(axis=2).tolist() == [[5, 5, 5, 5]]
