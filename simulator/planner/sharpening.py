"""Sharpening: bounds that are rough for all splits, and closer for those that the rough ones leave near the best.

Each step prices one more part of the work as forecasts do. The first one also settles how layers lie on the stages of
those for which that is open. A bound is never lowered.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from simulator.planner.bounds import Bound, Bounds
from simulator.planner.least_prices import LeastPrices
from simulator.planner.mixed_prices import MixedPrices
from simulator.planner.split_prices import SplitPrices
from simulator.planner.splits import OPEN, Splits
from simulator.program.job import Job

_FIRST = 60
"""The most promising splits that are looked at: bounds are sharpened a step where one of them has the roughest."""
_AT_ONCE = (4000, 500, 60)
"""Splits whose bounds are sharpened together, for each step: more of them share what is priced, fewer are priced in
vain."""
SHARPEST = len(_AT_ONCE)


class Sharpening:
    """Bounds of *splits* of *job*'s model, rough at first."""

    def __init__(self, splits: Splits, job: Job, prices: SplitPrices, global_batch_sequences: int) -> None:
        self._splits = splits
        rough = LeastPrices(job, int(splits["micro_batch_sequences"].max(initial=1)))
        sources = (rough, rough, rough), (prices, rough, rough), (prices, prices, rough), (prices,) * SHARPEST
        self._bounds = cache(lambda level: Bounds(job, MixedPrices(*sources[level]), global_batch_sequences))
        self.bound: Bound = self._bounds(0).of(splits)
        self._level = np.zeros(len(splits), np.int8)

    def is_sharp(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the bounds of these splits are as close as they get."""
        return np.asarray(self._level[numbers] == SHARPEST)

    def sharpen(self, numbers: npt.NDArray[np.int64]) -> bool:
        """Bring the bounds of some of the first of these splits a step closer; False where all are sharp."""
        rough = numbers[~self.is_sharp(numbers)]
        if not len(rough):
            return False
        level = int(self._level[rough[:_FIRST]].min())
        some = rough[self._level[rough] == level][: _AT_ONCE[level]]
        closer = self._bounds(level + 1)
        self._settle(some[self._splits["sharing"][some] == OPEN], closer)
        self._raise(some, closer.of(self._splits.only(some)))
        self._level[some] = level + 1
        return True

    def _settle(self, numbers: npt.NDArray[np.int64], closer: Bounds) -> None:
        """Settle how the layers of these splits lie on their stages."""
        if len(numbers):
            for number, stage_layers in zip(numbers.tolist(), closer.shares(self._splits.only(numbers)), strict=True):
                self._splits.share(number, stage_layers)

    def _raise(self, numbers: npt.NDArray[np.int64], closer: Bound) -> None:
        """Take in *closer* bounds of these splits."""
        raised = closer.step_s > self.bound.step_s[numbers]
        self.bound.step_s[numbers[raised]] = closer.step_s[raised]
        self.bound.terms[:, numbers[raised]] = closer.terms[:, raised]
        self.bound.peak_bytes[numbers] = np.maximum(self.bound.peak_bytes[numbers], closer.peak_bytes)
