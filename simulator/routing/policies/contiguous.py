"""No balancing: rank r holds the experts from r * experts / ep on, and computes what they are sent."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.routing.outcome import Outcome, Setting, placed
from simulator.routing.placement import contiguous
from simulator.routing.table import RoutingTable


@dataclass(frozen=True, slots=True)
class Options:
    """It has none."""


def apply(planned: RoutingTable, replayed: RoutingTable, setting: Setting, options: Options) -> Outcome:  # noqa: ARG001
    """*planned* does not matter."""
    return placed(contiguous(replayed.layers, replayed.experts, setting.ep), replayed, setting)
