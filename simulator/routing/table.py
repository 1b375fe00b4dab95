"""How often each expert of each MoE layer was chosen, and how uneven that is.

A table is popularity summed over many tokens, and a sample of single tokens where those were recorded: without it, it
knows nothing of which experts go together in one token. Nor does it know how the mix drifts from step to step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RoutingTable:
    """Token-expert assignments by MoE layer and expert, shape [layers, experts]; only ratios within a layer matter.

    Raise :exc:`ValueError` when *counts* is not a finite, non-negative matrix whose every layer has assignments.
    """

    counts: FloatArray
    name: str
    source: str = ""
    """Where the figures come from and what was done to them."""
    recorded_layers: tuple[int, ...] = ()
    """Number of each row's layer in the model that was recorded, dense layers counted; empty when unknown."""
    picks: IntArray | None = None
    """Experts of single tokens, [layers, tokens, top_k], -1 for none; None where they are not known."""

    def __post_init__(self) -> None:
        counts = np.array(self.counts, dtype=np.float64)
        if counts.ndim != 2 or counts.size == 0:
            raise ValueError(f"counts have shape {counts.shape}, expected (layers, experts)")
        if not np.isfinite(counts).all() or (counts < 0).any():
            raise ValueError(f"counts of {self.name!r} must be finite and not negative")
        if not counts.sum(axis=1).all():
            raise ValueError(f"a layer of {self.name!r} has no assignments")
        counts.setflags(write=False)
        object.__setattr__(self, "counts", counts)

    @property
    def layers(self) -> int:
        """MoE layers; dense layers have no row."""
        return int(self.counts.shape[0])

    @property
    def experts(self) -> int:
        """Routed experts of a layer."""
        return int(self.counts.shape[1])

    @property
    def popularity(self) -> FloatArray:
        """Each expert's share of its layer's assignments, [layers, experts]; every row sums to 1."""
        return np.asarray(self.counts / self.counts.sum(axis=1, keepdims=True))

    def expert_max_over_mean(self) -> FloatArray:
        """Load of the hottest expert over the mean, [layers]; 1 is balanced."""
        return max_over_mean(self.counts)

    def gini(self) -> FloatArray:
        """Gini coefficient of expert load, [layers]; 0 is balanced, (experts - 1) / experts is one expert for all."""
        load = np.sort(self.counts, axis=1)
        weight = 2.0 * np.arange(1, self.experts + 1) - self.experts - 1
        return np.asarray(load @ weight / (self.experts * load.sum(axis=1)))

    def zipf_exponent(self) -> FloatArray:
        """Slope s of the law count ~ rank^-s, least squares on log-log over the experts that were chosen, [layers]."""
        return np.array([_slope(np.sort(row[row > 0])[::-1]) for row in self.counts])

    def top_share(self, fraction: float = 0.2) -> FloatArray:
        """Share of assignments that the most popular *fraction* of the experts receives, [layers]."""
        top = max(1, round(fraction * self.experts))
        return np.asarray(np.sort(self.popularity, axis=1)[:, -top:].sum(axis=1))

    def entropy_bits(self) -> FloatArray:
        """Shannon entropy of popularity in bits, [layers]; log2(experts) is balanced."""
        share = self.popularity
        return np.asarray(-(share * np.log2(np.where(share > 0, share, 1.0))).sum(axis=1))

    def rank_load(self, ep: int) -> FloatArray:
        """Assignments that each of *ep* ranks receives, [layers, ep], experts placed contiguously: rank r holds the
        experts from r * experts / ep on. Raise :exc:`ValueError` when *ep* does not divide the experts.
        """
        if ep < 1 or self.experts % ep:
            raise ValueError(
                f"ep is {ep}, but it must divide the {self.experts} experts: {nearest_divisors(ep, self.experts)}"
            )
        return np.asarray(self.counts.reshape(self.layers, ep, -1).sum(axis=2))

    def rank_max_over_mean(self, ep: int) -> float:
        """Load of the busiest of *ep* ranks over the mean, averaged over layers: the factor by which experts wait."""
        return float(max_over_mean(self.rank_load(ep)).mean())


def max_over_mean(load: FloatArray) -> FloatArray:
    """The largest of each row over the row's mean, [layers]."""
    return np.asarray(load.max(axis=1) / load.mean(axis=1))


def _slope(descending: FloatArray) -> float:
    if descending.size < 2:
        return 0.0
    rank = np.log(np.arange(1, descending.size + 1))
    rank -= rank.mean()
    return float(-(rank @ np.log(descending)) / (rank @ rank))


def nearest_divisors(ep: int, experts: int) -> str:
    """The ending of a message that refuses *ep* ranks for *experts* experts: what would divide them."""
    divisors = [d for d in range(1, experts + 1) if experts % d == 0]
    below = max((d for d in divisors if d <= ep), default=1)
    above = min((d for d in divisors if d > ep), default=experts)
    return f"nearest are {below} and {above}" if below != above else f"nearest is {below}"
