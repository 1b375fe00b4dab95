"""Noise on the router's logits, which flattens popularity.

A token's logit for an expert is taken as the expert's mean plus what differs from token to token. Noise widens the
second part from 1 to sqrt(1 + ratio^2), so differences between the means matter less by that factor: popularity is
raised to the power 1 / sqrt(1 + ratio^2). Exact for a two-expert choice with normal differences, a rule of thumb else.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.routing.outcome import Outcome, Setting, placed
from simulator.routing.placement import contiguous
from simulator.routing.policies.auxiliary_loss import flattened
from simulator.routing.table import RoutingTable


@dataclass(frozen=True, slots=True)
class Options:
    """How loud."""

    ratio: float = 1.0
    """Standard deviation of the noise over that of logits between tokens."""


def apply(planned: RoutingTable, replayed: RoutingTable, setting: Setting, options: Options) -> Outcome:  # noqa: ARG001
    """*planned* does not matter. Raise :exc:`ValueError` for a negative ratio."""
    if options.ratio < 0:
        raise ValueError(f"ratio is {options.ratio:g}, expected 0 or more")
    flat = flattened(replayed, (1 + options.ratio**2) ** -0.5, f"router noise of {options.ratio:g}")
    return placed(contiguous(flat.layers, flat.experts, setting.ep), flat, setting)
