"""Training with a balancing loss, as the flatter distribution that it leads to.

Every expert's popularity is raised to the power 1 - strength, so the order of experts stays. No published figure links
a loss coefficient to a strength. For scale: 0.8 takes recordings of DeepSeek-V3 (trained with a coefficient of 0.0001,
Gini 0.35-0.45) to what Mixtral-8x7B shows (0.02, Gini 0.02-0.12). What balancing costs in quality is not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.routing.outcome import Outcome, Setting, placed
from simulator.routing.placement import contiguous
from simulator.routing.table import RoutingTable


@dataclass(frozen=True, slots=True)
class Options:
    """How flat."""

    strength: float = 0.8
    """0 leaves the distribution as it was recorded, 1 makes it even."""


def apply(planned: RoutingTable, replayed: RoutingTable, setting: Setting, options: Options) -> Outcome:  # noqa: ARG001
    """*planned* does not matter. Raise :exc:`ValueError` for a strength outside 0 to 1."""
    if not 0 <= options.strength <= 1:
        raise ValueError(f"strength is {options.strength:g}, expected 0 to 1")
    flat = flattened(replayed, 1 - options.strength, f"auxiliary loss of strength {options.strength:g}")
    return placed(contiguous(flat.layers, flat.experts, setting.ep), flat, setting)


def flattened(table: RoutingTable, exponent: float, how: str) -> RoutingTable:
    """*table* with popularity raised to *exponent*; an expert never chosen stays so."""
    powers = np.where(table.counts > 0, np.where(table.counts > 0, table.counts, 1.0) ** exponent, 0.0)
    powers *= table.counts.sum(axis=1, keepdims=True) / powers.sum(axis=1, keepdims=True)
    return RoutingTable(powers, f"{table.name}, {how}", table.source, table.recorded_layers)
