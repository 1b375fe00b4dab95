"""Sums over the layers of each virtual stage of a pipeline, for tables of many splits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulator.planner.passes import Passes
from simulator.program.pipeline import Pipeline

Values = npt.NDArray[np.float64]
Edges = npt.NDArray[np.int64]
"""First layer of each virtual stage, and one past the last."""


@dataclass(frozen=True, slots=True)
class StageSums:
    """Of one micro-batch: seconds [splits, parts, stages], bytes [splits, stages] of a stage's fullest rank."""

    forward: Values
    backward: Values
    again: Values
    saved: Values
    restored_last: Values
    """Of the stage's last layer alone."""
    waits: Values
    """Seconds of transfers that no work of another pass runs beside, forward and backward, [splits, 2, stages]."""

    def __getitem__(self, which: npt.NDArray[np.int64]) -> StageSums:
        """The rows that *which* names."""
        return StageSums(*(getattr(self, name)[which] for name in self.__slots__))

    def times(self, factor: Values) -> StageSums:
        """Each row times its own *factor*, [splits]."""
        amounts = (getattr(self, name) for name in self.__slots__)
        return StageSums(*(amount * factor.reshape(-1, *[1] * (amount.ndim - 1)) for amount in amounts))

    def longer_by(self, other: StageSums) -> StageSums:
        """Each row with the seconds of the same row of *other* as well."""
        forward, backward, again = (
            self.forward + other.forward,
            self.backward + other.backward,
            self.again + other.again,
        )
        return replace(self, forward=forward, backward=backward, again=again)

    @classmethod
    def joined(cls, several: Iterable[StageSums]) -> StageSums:
        """The rows of *several*, one after the other."""
        some = list(several)
        return cls(*(np.concatenate([getattr(one, name) for one in some]) for name in cls.__slots__))


def stage_edges(layers: int, pipeline: Pipeline, modules: int = 0, shares: tuple[int, ...] = ()) -> Edges:
    """First layer of each virtual stage, and one past the last, where stages have *shares* of them, or even ones.

    Prediction *modules* count as layers of the last one.
    """
    edges = np.array(replace(pipeline, layers=shares).edges(layers), np.int64)
    edges[-1] += modules
    return edges


def stage_sums(passes: list[Passes], edges: Edges) -> StageSums:
    """Sums of each of *passes* over the stages between *edges*."""

    def summed(name: str) -> Values:
        return over_stages(np.stack([getattr(one, name) for one in passes]), edges)

    return StageSums(
        forward=summed("forward"),
        backward=summed("backward"),
        again=summed("again"),
        saved=np.stack([over_stages(one.saved.T, edges).max(axis=0) for one in passes]),
        restored_last=np.stack([_restored_last(one, edges) for one in passes]),
        waits=summed("waits"),
    )


def _restored_last(passes: Passes, edges: Edges) -> Values:
    """Bytes restored in the last layer of each stage on its fullest rank; on the emptiest where ranks keep other bytes
    as well, since the fullest of those may be another. None where a stage has no layer.
    """
    last = passes.restored[edges[1:] - 1]
    alike = passes.saved.shape[1] == 1 or bool(np.ptp(passes.saved, axis=1).max(initial=0.0) == 0.0)
    return np.where(np.diff(edges) > 0, last.max(axis=1) if alike else last.min(axis=1), 0.0)


def over_stages(values: Values, edges: Edges) -> Values:
    """Sums along the last axis, which counts layers, over each stage."""
    until = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
    result: Values = until[..., edges[1:]] - until[..., edges[:-1]]
    return result
