"""What runs between two exchanges: how late the host is, and what nothing runs beside."""

import numpy as np
import pytest

from simulator.planner.between_exchanges import Piece, late_s, waits_s

MS = 1e-3
LAUNCH_S = 0.05 * MS


def _piece(work_ms: list[float], issue_ms: float, moves_ms: float = 0.0) -> Piece:
    return Piece(np.array([work_ms]) * MS, issue_ms * MS, moves_ms * MS)


def test_the_device_waits_for_the_kernel_that_the_host_is_latest_with() -> None:
    # The first kernel is issued 0.05 + 0.05 ms behind the wait. The second one comes 0.6 ms later, and the slowest rank
    # has 0.1 ms to do until then.
    sorts, products = _piece([0.1, 0.1], 0.05), _piece([3.0, 2.0], 0.6)
    assert late_s([sorts, products], LAUNCH_S) == pytest.approx([0.6 * MS])
    # With 1 ms to do the host has caught up.
    assert late_s([_piece([1.0, 0.5], 0.05), products], LAUNCH_S) == pytest.approx([0.1 * MS])


def test_time_before_a_kernel_is_what_the_slowest_rank_has_less_without_it() -> None:
    # Rank 0 has 4 + 1 ms, rank 1 has 0 + 4.5 ms: from the second kernel on it takes 4.5 ms at least, so only 0.5 ms of
    # the 5 count before it.
    pieces = [_piece([4.0, 0.0], 0.05), _piece([1.0, 4.5], 0.9)]
    assert late_s(pieces, LAUNCH_S) == pytest.approx([(1.0 - 0.5) * MS])


def test_transfers_that_a_kernel_follows_wait_for_nothing_else() -> None:
    gather, sorts, scatter = _piece([0.0], 0.0, 2.0), _piece([1.0], 0.05), _piece([0.0], 0.0, 1.0)
    assert waits_s([gather, sorts, scatter], last=False) == pytest.approx(2 * MS)
    assert waits_s([gather, sorts, scatter], last=True) == pytest.approx(3 * MS)
    assert late_s([gather, sorts], LAUNCH_S) == pytest.approx([0.05 * MS])
