"""Orders: what a bound needs to know of how the passes of a pipeline follow each other.

All of it is read off the schedule's own list of passes. Of more micro-batches than fill a pipeline (`FILLED` times its
stages), only passes in the middle are added: what is at the ends and what is held at once stay, but under GPipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from simulator.forecast.pipelining import schedule_of
from simulator.planner.splits import NO_OVERLAP, OVERLAP_WEIGHTS, SCHEDULES
from simulator.program.pipeline import Pipeline
from simulator.program.schedules import Pass, in_flight, schedules

Counts = npt.NDArray[np.float64]
"""[splits, stages, chunks]."""
FILLED = 4
_LATER = ("zb_h1", "dualpipe")
"""Schedules that may end with gradients of weights, while no other stage waits for this one."""
_ALL_FIRST = "gpipe"


@dataclass(frozen=True, slots=True)
class Order:
    """A *schedule*, by its file, over a *pipeline*; it *weaves* the passes of a pair, and may have gradients of weights
    that *fill* their waits.
    """

    pipeline: Pipeline
    schedule: str
    weaves: bool
    fills: bool

    @classmethod
    def of(cls, stages: int, virtual_pipeline: int, schedule: int, overlap: int) -> Order:
        """That of a split with these columns."""
        asked, weaves = SCHEDULES[schedule], overlap != NO_OVERLAP
        mirrored = asked == "dualpipe"
        pipeline = Pipeline(stages, 2 if mirrored else virtual_pipeline, mirrored)
        fills = overlap == OVERLAP_WEIGHTS
        return cls(pipeline, schedule_of(asked, virtual_pipeline, overlaps=weaves), weaves, fills)

    @property
    def held(self) -> npt.NDArray[np.int64]:
        """The virtual stages that each stage holds, [stages, chunks]."""
        return _held(self.pipeline)

    def over_chunks(self, values: Counts) -> Counts:
        """Sums of *values*, whose last axis counts virtual stages, over those that each stage holds."""
        result = values[..., self.held[:, 0]]
        for virtual in self.held.T[1:]:
            result = result + values[..., virtual]
        return result

    @property
    def ahead(self) -> npt.NDArray[np.int64]:
        """Virtual stages that a micro-batch goes through before the first pass of each stage, at least."""
        stages = np.arange(self.pipeline.stages)
        return np.minimum(stages, stages[::-1]) if self.pipeline.mirrored else stages

    @property
    def returns(self) -> bool:
        """Whether a stage's last backward pass is followed by one on every stage ahead of it."""
        return self.schedule not in _LATER

    @property
    def fullest_before_backward(self) -> bool:
        """Whether a whole backward pass is what follows when a stage holds most."""
        return self.schedule not in _LATER and not self.weaves

    def alive(self, micro_batches: npt.NDArray[np.int64]) -> Counts:
        """Micro-batches whose forward pass is done and whose backward pass has not begun, when they are most."""
        if self.schedule == _ALL_FIRST:
            return np.repeat(micro_batches[:, None, None], self.pipeline.stages, axis=1).astype(float)
        return self._counted(micro_batches, "alive")

    def unpaired(self, micro_batches: npt.NDArray[np.int64]) -> tuple[Counts, Counts]:
        """Forward and backward passes of a step that run beside no other."""
        return self._counted(micro_batches, "forward"), self._counted(micro_batches, "backward")

    def _counted(self, micro_batches: npt.NDArray[np.int64], what: str) -> Counts:
        few = np.minimum(micro_batches, FILLED * self.pipeline.stages)
        distinct, which = np.unique(few, return_inverse=True)
        found = [_counted_passes(self, int(count))[what] for count in distinct]
        return np.stack(found)[which.reshape(-1)]


@cache
def _held(pipeline: Pipeline) -> npt.NDArray[np.int64]:
    return np.array(
        [[pipeline.virtual(stage, chunk) for chunk in range(pipeline.chunks)] for stage in range(pipeline.stages)]
    )


@cache
def _counted_passes(order: Order, micro_batches: int) -> dict[str, npt.NDArray[np.float64]]:
    """What `Order` tells of one number of micro-batches, [stages, chunks]."""
    pipeline = order.pipeline
    found = {what: np.zeros((pipeline.stages, pipeline.chunks)) for what in ("alive", "forward", "backward")}
    for stage in range(pipeline.stages):
        passes = schedules()[order.schedule](stage, pipeline.stages, micro_batches, pipeline.chunks)
        alive = in_flight(_one_behind_the_other(passes) if order.weaves else passes)
        found["alive"][stage, : len(alive)] = alive
        second = False
        for one in passes:
            if one.direction != "weights" and not (one.paired or second):
                found["forward" if one.direction == "forward" else "backward"][stage, one.chunk] += 1
            second = one.paired
    return found


def _one_behind_the_other(passes: Sequence[Pass]) -> list[Pass]:
    """Passes with the second of each pair before its first: what is held before the pair begins is counted then."""
    turned = list(passes)
    for number, one in enumerate(passes):
        if one.paired:
            turned[number], turned[number + 1] = passes[number + 1], one
    return turned
