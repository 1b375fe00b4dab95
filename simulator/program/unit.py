"""A unit: what is gathered and freed together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.parallel.sharding import ShardGroup


@dataclass(frozen=True, slots=True)
class Unit:
    """A layer's groups of parameters, or the root's."""

    name: str
    groups: tuple[ShardGroup, ...]
    trained: Mapping[str, tuple[str, int]]
    """Group and trained elements of each weight, by its name within the layer."""
