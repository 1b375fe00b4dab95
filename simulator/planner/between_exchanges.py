"""Between exchanges: what runs on rows that have come before they are sent home, in the order of one direction.

The host has waited for the numbers of these rows, and while it did the device ran out of work: what was issued before
the numbers were told is done by then. So a kernel that is issued H later, with D of work before it, leaves the device
idle for H - D at least. Transfers between ranks that split an expert stand between kernels: of those that a kernel of
the same stretch follows, nothing of another pass runs beside them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from simulator.planner.passes import Amounts


@dataclass(frozen=True, slots=True)
class Piece:
    """One direction of an operator: kernels [layers, ranks], how long the host issues them, transfers behind them."""

    work_s: Amounts
    issue_s: float
    moves_s: float


def late_s(pieces: Iterable[Piece], launch_s: float) -> Amounts:
    """Seconds by which the host is late for one of *pieces* at least, [layers]: rows are sent by one launch before.

    What follows until the next exchange takes the slowest rank's time.
    """
    issued_s, done = launch_s, np.zeros(())
    found: list[tuple[float, Amounts]] = []
    for piece in pieces:
        issued_s += piece.issue_s
        found.append((issued_s, done))
        done = done + piece.work_s + piece.moves_s
    if not found:
        return np.zeros(1)
    whole = done.max(axis=1)
    return np.asarray(np.max([issued - (whole - (done - before).max(axis=1)) for issued, before in found], axis=0))


def waits_s(pieces: Iterable[Piece], *, last: bool) -> float:
    """Seconds of transfers that kernels behind them wait for, and of the *last* ones as well."""
    waited = open_ = 0.0
    for piece in pieces:
        if piece.issue_s:
            waited, open_ = waited + open_, 0.0
        open_ += piece.moves_s
    return waited + open_ * last
