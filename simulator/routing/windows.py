"""A trace over time: load by rank and the busiest of each window of steps, experts placed contiguously."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.routing.table import FloatArray, IntArray
from simulator.routing.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Loads over an even share, means over the layers that a window has rows of."""

    first_steps: tuple[int, ...]
    load: FloatArray
    """Of each rank, [windows, ranks]; a row's mean is 1."""
    rank_max_over_mean: FloatArray
    """[windows]: of each layer's busiest rank, which need not be the same in all."""
    expert_max_over_mean: FloatArray
    hottest_rank: IntArray
    """[windows]: of the highest load."""


def windows(trace: Trace, ep: int) -> Windows:
    """*trace* window by window on *ep* ranks, which must divide its experts."""
    counts = trace.counts.sum(axis=1)
    experts, ranks = _over_even(counts), _over_even(counts.reshape(*counts.shape[:2], ep, -1).sum(axis=3))
    load = np.nanmean(ranks, axis=1)
    return Windows(
        first_steps=trace.first_steps,
        load=load,
        rank_max_over_mean=np.nanmean(ranks.max(axis=2), axis=1),
        expert_max_over_mean=np.nanmean(experts.max(axis=2), axis=1),
        hottest_rank=load.argmax(axis=1),
    )


def _over_even(load: FloatArray) -> FloatArray:
    """*load* [windows, layers, places] over the mean of its places, NaN where a window has no rows of a layer."""
    mean = load.mean(axis=2, keepdims=True)
    return np.asarray(np.divide(load, mean, out=np.full_like(load, np.nan), where=mean > 0))
