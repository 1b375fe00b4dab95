"""Caches that cards let go, kept in host memory and on drives in place of being computed again.

Blocks of prompts come down when the card forgets them, sequences when they are sent back for want of blocks (LMCache,
SGLang's HiCache, vLLM's swapping). What was used last goes last; host memory hands on to drives, drives forget. What
comes up comes layer by layer beside the iteration that needs it, so that of L layers, each computed in c seconds and
brought in l seconds, it waits

    l + (L - 1) * max(0, l - c)

Copies down run beside compute and are not charged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

Seconds = Callable[[float], float]
"""Of bytes that come up to a card while its node's other cards do alike."""


@dataclass(frozen=True, slots=True)
class Tier:
    """One of them, as one rank has it."""

    name: str
    capacity_bytes: float
    seconds: Seconds
    grade: str = "measured"
    """What is known of it."""


class _Shelf:
    """What one tier holds, the first of it to go next."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.held: OrderedDict[Hashable, float] = OrderedDict()
        self.used_bytes = 0.0
        self.peak_bytes = 0.0

    def put(self, key: Hashable, size: float) -> list[tuple[Hashable, float]]:
        """Hold *key*; what goes for it."""
        self.held[key] = size
        self.used_bytes += size
        gone = []
        while self.used_bytes > self.tier.capacity_bytes:
            other, other_size = self.held.popitem(last=False)
            self.used_bytes -= other_size
            gone.append((other, other_size))
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return gone

    def take(self, key: Hashable) -> float:
        """Give *key* up."""
        size = self.held.pop(key)
        self.used_bytes -= size
        return size


class LowerTiers:
    """The tiers below one rank's card, from the highest down."""

    def __init__(self, tiers: tuple[Tier, ...]) -> None:
        self._shelves = [_Shelf(tier) for tier in tiers]

    def put(self, key: Hashable, size: float) -> None:
        """Keep *size* bytes under *key*, as far down as room takes them."""
        self.forget(key)
        coming = [(key, size)]
        for shelf in self._shelves:
            coming = [gone for one, one_size in coming for gone in shelf.put(one, one_size)]

    def holds(self, key: Hashable) -> bool:
        """Whether *key* is kept."""
        return any(key in shelf.held for shelf in self._shelves)

    def take(self, key: Hashable) -> float:
        """Bring *key* up: the seconds that it is under way alone."""
        for shelf in self._shelves:
            if key in shelf.held:
                return shelf.tier.seconds(shelf.take(key))
        raise KeyError(key)

    def forget(self, key: Hashable) -> None:
        """Keep *key* no longer."""
        for shelf in self._shelves:
            if key in shelf.held:
                shelf.take(key)

    @property
    def peak_bytes(self) -> dict[str, float]:
        """Most that each tier held."""
        return {shelf.tier.name: shelf.peak_bytes for shelf in self._shelves}


def waited_s(load_s: float, computed_s: float, layers: int) -> float:
    """What an iteration of *computed_s* waits for *load_s* of caches, brought up layer by layer."""
    load, computed = load_s / layers, computed_s / layers
    return load + (layers - 1) * max(0.0, load - computed) if load_s else 0.0
