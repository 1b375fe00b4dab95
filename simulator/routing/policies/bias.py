"""Balancing without a loss: a bias per expert, lowered where it was chosen too often and raised where too seldom.

The biases are learnt on the planning table and kept on the replayed one, so a change of workload shows. A bias acts as
a factor on popularity, and each update changes it by the same ratio whatever the excess (only its sign counts, as in
section 2.1.2 of arXiv 2412.19437). That work gives the speed in units of a sigmoid's output; here it is in log
popularity, and a model's own scores would be needed to translate one to the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.routing.outcome import Outcome, Setting, placed, reweighted
from simulator.routing.placement import contiguous
from simulator.routing.table import FloatArray, RoutingTable

PLANS = True


@dataclass(frozen=True, slots=True)
class Options:
    """How far the biases have come."""

    speed: float = 0.01
    """Change of log popularity in an update."""
    updates: int = 500


def apply(planned: RoutingTable, replayed: RoutingTable, setting: Setting, options: Options) -> Outcome:
    """Learn on *planned*. Raise :exc:`ValueError` for a negative speed or number of updates."""
    if options.speed < 0 or options.updates < 0:
        raise ValueError(f"speed is {options.speed:g} and updates {options.updates}, expected neither below 0")
    balanced = reweighted(replayed, np.exp(_biases(planned.counts, options)), f"bias after {options.updates} updates")
    return placed(contiguous(balanced.layers, balanced.experts, setting.ep), balanced, setting)


def _biases(counts: FloatArray, options: Options) -> FloatArray:
    bias = np.zeros_like(counts)
    for _ in range(options.updates):
        load = counts * np.exp(bias)
        bias -= options.speed * np.sign(load - load.mean(axis=1, keepdims=True))
    return bias
