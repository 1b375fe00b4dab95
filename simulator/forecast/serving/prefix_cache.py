"""Blocks of prompts that are kept after their sequence ended, as long as nothing else needs the room.

A prompt finds what it begins with: its hashes in order, up to the first that is not there. Blocks that sequences share
are held once; those that none holds go in the order in which they were last held (vLLM's automatic prefix caching,
SGLang's radix cache).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from simulator.forecast.serving.cache_pool import CachePool
from simulator.forecast.serving.lower_tiers import LowerTiers
from simulator.forecast.serving.request_traces import HASH_TOKENS


class PrefixCache:
    """The hashed blocks of one rank, inside the room of its *pool*; what it forgets goes to *tiers* below."""

    def __init__(self, pool: CachePool, tiers: LowerTiers | None = None) -> None:
        self._pool, self._tiers = pool, tiers
        self.hash_blocks = HASH_TOKENS // pool.block_tokens
        """Blocks of the pool that one hash stands for."""
        self._holders: dict[int, int] = {}
        """How many sequences hold each hash."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Those that none holds, the first of them to go next."""

    def found(self, hashes: tuple[int, ...]) -> tuple[int, ...]:
        """The first of *hashes* that are there."""
        for number, one in enumerate(hashes):
            if one not in self._holders and one not in self._idle:
                return hashes[:number]
        return hashes

    def below(self, hashes: tuple[int, ...]) -> tuple[int, ...]:
        """The first of *hashes* that lower tiers have."""
        for number, one in enumerate(hashes):
            if self._tiers is None or not self._tiers.holds(one):
                return hashes[:number]
        return hashes

    def idle_among(self, hashes: Iterable[int]) -> int:
        """How many of *hashes* no sequence holds: holding them takes their room."""
        return sum(one in self._idle for one in hashes)

    def hold(self, hashes: Iterable[int]) -> None:
        """A sequence begins to hold *hashes*, which are there."""
        for one in hashes:
            if one in self._idle:
                del self._idle[one]
                self._pool.take(self.hash_blocks)
            self._holders[one] = self._holders.get(one, 0) + 1

    def add(self, hashes: Iterable[int]) -> tuple[int, ...]:
        """Of *hashes* that a sequence has computed in blocks of its own, those that become blocks for all."""
        new = []
        for one in hashes:
            if one in self._holders:
                continue
            # An idle block of the same content is the one that goes; the new one takes its name.
            self._idle.pop(one, None)
            self._holders[one] = 1
            new.append(one)
        return tuple(new)

    def let_go(self, hashes: Iterable[int]) -> None:
        """A sequence ends; blocks that it alone held stay, the last ones of its prompt to go first."""
        for one in reversed(tuple(hashes)):
            self._holders[one] -= 1
            if self._holders[one] == 0:
                del self._holders[one]
                self._idle[one] = None
                self._pool.used_bytes -= self.hash_blocks * self._pool.block_bytes

    def make_room(self) -> None:
        """Forget idle blocks until what is held and what is kept fit together."""
        size = self.hash_blocks * self._pool.block_bytes
        while self._idle and self._pool.used_bytes + len(self._idle) * size > self._pool.capacity_bytes:
            gone, _ = self._idle.popitem(last=False)
            if self._tiers is not None:
                self._tiers.put(gone, size)
