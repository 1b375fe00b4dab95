"""The search for the best split: all candidates, their bounds, and what simulations have told of some of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulator.planner.bounds import Bound
from simulator.planner.case import Row
from simulator.planner.records import MOST_BYTES
from simulator.planner.sharpening import Sharpening
from simulator.planner.splits import LAYOUT, WAYS, Splits
from simulator.planner.survival import Survival
from simulator.program.exchanges import exchanges, no_buffer

MOST_SURE = 60
"""Candidates left at the end whose bounds are sharpened: those of very many would take longer than the search."""
MOST_ALIKE = 1000
"""Candidates among which those of one family are told apart."""


@dataclass(slots=True)
class Search:
    """Candidates, and what is known of each."""

    splits: Splits
    bounds: Sharpening
    capacity_bytes: float
    records_bytes: npt.NDArray[np.float64]
    """What a simulation of each takes to be written down."""
    own_recompute: str
    """The scenario's recomputation, in words."""
    own: int | None = None
    """The scenario's own layout, where that is a candidate: it is simulated among the first, whatever its bound."""
    survival: Survival | None = None
    """What becomes of candidates when nodes are lost, where they have to go on."""
    rows: dict[int, Row] = field(default_factory=dict)
    """Simulated candidates by number."""
    _like_own: int | None = field(init=False, default=None)
    """The candidate that differs from the own layout at most in how layers lie on its stages."""

    def __post_init__(self) -> None:
        if self.own is not None:
            self._like_own = self.splits.like(self.splits.split(self.own))

    @property
    def repeated(self) -> list[int]:
        """The candidate, if any, whose layers have come to lie as in the own layout, which stands for both."""
        like, sharing = self._like_own, self.splits["sharing"]
        if self.own is None or like is None or like == self.own or sharing[like] != sharing[self.own]:
            return []
        return [like]

    @property
    def bound(self) -> Bound:
        """What is known of all candidates so far."""
        return self.bounds.bound

    @property
    def fitting(self) -> npt.NDArray[np.bool_]:
        """Candidates that their bound does not rule out for memory."""
        return np.asarray(self.bound.peak_bytes <= self.capacity_bytes)

    @property
    def simulated(self) -> int:
        """How many were simulated; others turned out not to fit, or to be tight, before that."""
        return sum(row["step_time_s"] is not None for row in self.rows.values())

    @property
    def tight(self) -> list[int]:
        """Those that turned out to be tight and were not simulated, lowest bound first."""
        found = (number for number, row in self.rows.items() if row["verdict"] == "tight" and not row["step_time_s"])
        return sorted(found, key=lambda number: (float(self.bound.step_s[number]), number))

    @property
    def winner(self) -> int | None:
        """The fastest that fits; where none does, the fastest that would be tight; none that a loss is known to end."""
        for verdict in ("fits", "tight"):
            found = [number for number, row in self._timed(verdict) if self.goes_on(number)]
            if found:
                return min(found, key=lambda number: (self.rows[number]["step_time_s"], number))
        return None

    def _timed(self, *verdicts: str) -> list[tuple[int, Row]]:
        """Rows of simulated candidates with one of these verdicts."""
        return [one for one in self.rows.items() if one[1]["verdict"] in verdicts and one[1]["step_time_s"] is not None]

    def goes_on(self, number: int) -> bool:
        """Whether a candidate goes on when nodes are lost, as far as is known."""
        return self.survival is None or not self.survival.fails(number)

    def learn(self, found: dict[int, Row]) -> None:
        """Take in rows of candidates by number.

        What did not fit rules out all that differ in their way of exchange alone, if they send a token as often to a
        rank: rows that are sent another way keep the same memory, and some ways keep buffers besides.
        """
        self.rows.update(found)
        ways = [exchanges()[way] for way in WAYS]
        for number, row in found.items():
            way = ways[int(self.splits["exchange"][number])]
            if row["verdict"] == "does not fit" and way.buffer_bytes is no_buffer:
                alike = self.splits.alike(number, but="exchange")
                as_often = np.array([other.once == way.once for other in ways])
                alike = alike[as_often[self.splits["exchange"][alike]]]
                self.bound.peak_bytes[alike] = np.maximum(self.bound.peak_bytes[alike], row["peak_bytes"])

    def roomier(self) -> npt.NDArray[np.int64]:
        """Candidates that cannot win and may take less memory than all faster ones that go on, lowest bound first."""
        held = [row for number, row in self._timed("fits", "tight") if self.goes_on(number)]
        open_ = self.fitting.copy()
        open_[[*self.rows, *self.repeated]] = False
        for row in held:
            open_ &= (self.bound.step_s < row["step_time_s"]) | (self.bound.peak_bytes < row["peak_bytes"])
        numbers = np.flatnonzero(open_)
        numbers = numbers[np.lexsort((self.bound.peak_bytes[numbers], self.bound.step_s[numbers]))]
        # In this order one is on the front of the bounds where it takes less than every one before it.
        least = np.minimum.accumulate(np.concatenate([[np.inf], self.bound.peak_bytes[numbers]]))[:-1]
        return np.asarray(numbers[self.bound.peak_bytes[numbers] < least])

    def next(self, count: int) -> list[int]:
        """At most *count* candidates to simulate now: those that may win, failing that those that may take less memory;
        lowest bound first, one of each family, none that is too large to simulate; the scenario's own layout before
        all.
        """
        own = [self.own] if self.own is not None and self.own not in self.rows and self.fitting[self.own] else []
        return [*own, *self._lowest(count - len(own), besides=own)]

    def _lowest(self, count: int, besides: list[int]) -> list[int]:
        """*count* candidates by their closest bounds, none of those *besides* them."""
        while count:
            promising = self.promising()
            numbers = promising if len(promising) else self.roomier()
            numbers = numbers[~np.isin(numbers, besides) & (self.records_bytes[numbers] <= MOST_BYTES)]
            chosen = self._one_a_family(numbers, count)
            if self.bounds.is_sharp(chosen).all():
                return [int(number) for number in chosen]
            self.bounds.sharpen(numbers)
        return []

    def left(self) -> npt.NDArray[np.int64]:
        """Candidates that may still win, lowest bound first: the first `MOST_SURE` of them by the closest bounds there
        are, others as far as bounds are known.
        """
        promising = self.promising()
        while not self.bounds.is_sharp(promising[:MOST_SURE]).all():
            self.bounds.sharpen(promising)
            promising = self.promising()
        return promising

    @property
    def least_step_s(self) -> float | None:
        """The lowest bound of those that may fit; None where none does."""
        while True:
            numbers = self.promising()[:1]
            if not self.bounds.sharpen(numbers):
                return float(self.bound.step_s[numbers[0]]) if len(numbers) else None

    def _one_a_family(self, numbers: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
        """The first of *numbers* of each family: candidates that differ in their schedule and exchange alone."""
        numbers = numbers[:MOST_ALIKE]
        first, _ = self.splits.only(numbers).distinct("pp", *LAYOUT, "recompute")
        return np.asarray(numbers[np.sort(first)[:count]])

    def promising(self) -> npt.NDArray[np.int64]:
        """Candidates that may still win as far as bounds are known, lowest bound first."""
        best = min(
            (
                row["step_time_s"]
                for number, row in self.rows.items()
                if row["verdict"] == "fits" and self.goes_on(number)
            ),
            default=np.inf,
        )
        open_ = self.fitting & (self.bound.step_s < best)
        open_[[*self.rows, *self.repeated]] = False
        numbers = np.flatnonzero(open_)
        return np.asarray(numbers[np.lexsort((self.bound.peak_bytes[numbers], self.bound.step_s[numbers]))])
