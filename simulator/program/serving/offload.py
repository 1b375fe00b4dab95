"""What of a deployment lies below the card: weights of layers, their caches, routed experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.program.swap import taken


@dataclass(frozen=True, slots=True)
class Reads:
    """How drives are read for the cards."""

    direct: bool
    """Whether cards are sent what is read without their host's memory (GPUDirect Storage)."""
    block_bytes: float
    queue_depth: int
    """Blocks that a process has under way."""


@dataclass(frozen=True, slots=True)
class ServingOffload:
    """Parts of a deployment that host memory or drives hold."""

    weights: float = 0.0
    """Share of the layers whose weights come in for every iteration."""
    reads: Reads | None = None
    """Where drives hold those weights; None: host memory does."""
    cache: float = 0.0
    """Share of the layers with keys and values whose caches are in host memory, and come in for every iteration."""
    prefetch: int = 1
    """Layers whose weights and caches come in ahead of the one that is computed."""
    experts: Literal["cores", "fetched"] | None = None
    """Who computes routed experts that are in host memory: its cores, or the card, to which those chosen come."""
    on_card: float = 0.0
    """Share of a layer's experts, the most popular ones, that the card holds all the same."""
    threads: int = 1
    """Cores that each rank's process computes experts with."""

    def __bool__(self) -> bool:
        """Whether anything is below the card."""
        return bool(self.weights or self.cache or self.experts)

    @property
    def buffers(self) -> int:
        """Layers that have room on the card: those on their way, and the one that is computed."""
        return self.prefetch + 1

    def streams(self, ordinal: int) -> bool:
        """Whether the weights of the layer with that *ordinal* come in for every iteration."""
        return taken(self.weights, ordinal)

    def caches_away(self, ordinal: int) -> bool:
        """Whether the cache of the layer with that *ordinal* among those that have one is in host memory."""
        return taken(self.cache, ordinal)


ALL_ON_CARD = ServingOffload()
