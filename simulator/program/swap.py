"""Swap: which results go to host memory between the passes of a layer, and which stay on the card, instead of being
computed again; of layers that keep all, whose saved tensors go.

A share of the layers of each make does so for an operator: shares are spread evenly over those layers, so that copies
are as even along the step. Layers that keep an operator's results on the card are taken among the others, likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor

from simulator.model.recompute import Recompute

_HAIR = 1e-9


@dataclass(frozen=True, slots=True)
class Swap:
    """Shares by operator's name."""

    host: Mapping[str, float] = field(default_factory=dict)
    card: Mapping[str, float] = field(default_factory=dict)
    prefetch: int = 1
    """Layers whose tensors come back ahead of the layer that is at work."""
    in_flight: int = 1
    """Layers whose tensors may still be on their way out while the next one works."""

    def __hash__(self) -> int:
        return hash((*self.host.items(), None, *self.card.items(), self.prefetch, self.in_flight))

    def __bool__(self) -> bool:
        return bool(self.host or self.card)

    def placed(self, recompute: Recompute, ordinal: int) -> Recompute:
        """*recompute* of the layer with that *ordinal* among those of its make, with the operators whose results are
        on the card or on the host instead.
        """
        away = frozenset(name for name, share in self.host.items() if taken(share, ordinal))
        card = frozenset(name for name in self.card if name not in away and self._stays(name, ordinal))
        return replace(recompute, results=card, away=away)

    def _stays(self, name: str, ordinal: int) -> bool:
        """Shares count over all layers: among those whose results do not go to the host a larger share stays."""
        away = self.host.get(name, 0.0)
        others = sum(not taken(away, number) for number in range(ordinal))
        return taken(min(1.0, self.card[name] / max(1 - away, _HAIR)), others)


def ordinals(makes: Sequence[object]) -> list[int]:
    """Of each layer, by its make, the number among those of the same make."""
    seen: dict[object, int] = {}
    found = []
    for make in makes:
        found.append(seen.get(make, 0))
        seen[make] = found[-1] + 1
    return found


def taken(share: float, ordinal: int) -> bool:
    """Whether the thing with that *ordinal* is among an evenly spread *share*."""
    return floor((ordinal + 1) * share + _HAIR) > floor(ordinal * share + _HAIR)
