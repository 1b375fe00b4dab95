"""Sums over the layers of each pipeline stage, for tables of many splits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.planner.layer_prices import Passes

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StageSums:
    """Of one micro-batch: seconds [splits, parts, stages], bytes [splits, stages], busy ports [splits, levels, stages].

    The fullest rank of a stage tells its bytes.
    """

    forward: Values
    backward: Values
    again: Values
    saved: Values
    saved_last: Values
    """Of the stage's last layer alone."""
    busy: Values

    def __getitem__(self, which: npt.NDArray[np.int64]) -> StageSums:
        """The rows that *which* names."""
        return StageSums(*(getattr(self, name)[which] for name in self.__slots__))


def stage_edges(layers: int, stages: int, modules: int = 0) -> npt.NDArray[np.int64]:
    """First layer of each stage, and one past the last: as even as can be, the first stages one more.

    Prediction *modules* count as layers of the last stage.
    """
    each, more = divmod(layers, stages)
    edges = np.concatenate([[0], np.cumsum([each + (stage < more) for stage in range(stages)])]).astype(np.int64)
    edges[-1] += modules
    return edges


def stage_sums(passes: list[Passes], edges: npt.NDArray[np.int64]) -> StageSums:
    """Sums of each of *passes* over the stages between *edges*."""

    def summed(name: str) -> Values:
        return np.stack([over_stages(getattr(one, name), edges) for one in passes])

    return StageSums(
        forward=summed("forward"),
        backward=summed("backward"),
        again=summed("again"),
        saved=np.stack([over_stages(one.saved.T, edges).max(axis=0) for one in passes]),
        saved_last=np.stack([one.saved[edges[1:] - 1].max(axis=1) for one in passes]),
        busy=summed("busy"),
    )


def over_stages(values: Values, edges: npt.NDArray[np.int64]) -> Values:
    """Sums along the last axis, which counts layers, over each stage."""
    until = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
    result: Values = until[..., edges[1:]] - until[..., edges[:-1]]
    return result
