"""Accelerators that do the same for requests: a deployment, what its ranks hold, and what is left for caches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.forecast.memory import COMMUNICATOR_BYTES, CONTEXT_BYTES
from simulator.forecast.serving.cache_pool import CachePool
from simulator.forecast.serving.lower_tiers import LowerTiers, Tier
from simulator.forecast.serving.plan import Limits
from simulator.program.drives import DRIVE_TIER
from simulator.program.host_memory import HOST_TIER
from simulator.program.serving.deployment import Deployment
from simulator.program.serving.memory import RankMemory


@dataclass(frozen=True)
class Pool:
    """Engines that are alike."""

    deployment: Deployment
    memory: RankMemory
    """Of a rank of the pipeline stage that has least room for sequences."""
    usable_bytes: float
    """Of an accelerator's memory."""
    block_tokens: int
    limits: Limits
    receive_every: int = 1
    """Iterations of decoding from one look at what came to the next."""
    tiers: tuple[Tier, ...] = ()
    """Below a card: where caches go that it lets go."""

    @property
    def accelerators(self) -> int:
        """How many it has."""
        return self.deployment.mesh.ranks

    @property
    def engines(self) -> int:
        """Groups of ranks that share no experts."""
        return self.deployment.mesh.dp_replicate

    @property
    def ranks(self) -> int:
        """Ranks of an engine that have requests of their own."""
        return self.deployment.mesh.dp_shard

    @property
    def batches(self) -> int:
        """Batches that are under way on each rank: one for each pipeline stage."""
        return self.deployment.mesh.pp

    def held(self) -> dict[str, float]:
        """Bytes of an accelerator that caches cannot have, by kind."""
        memory = self.memory
        outside = CONTEXT_BYTES + COMMUNICATOR_BYTES * memory.communicators
        return {
            **memory.weights,
            "activations": memory.activation_bytes,
            "communication buffers": memory.buffer_bytes,
            "workspace": memory.workspace_bytes,
            "context": outside,
        }

    @property
    def cache_bytes(self) -> float:
        """What is left for caches; negative: missing. A part of each in host memory must have room there, too."""
        room, away = self.usable_bytes - sum(self.held().values()), self.cache_below
        return min(room, self.host_room_bytes / away) if away else room

    @property
    def cache_below(self) -> float:
        """Bytes of caches in host memory for each on the card, as the longest sequences have them."""
        tokens = self.deployment.longest_tokens
        return self.memory.host_cache.bytes_of(tokens) / max(1.0, self.memory.cache.bytes_of(tokens))

    @property
    def longest_bytes(self) -> float:
        """Of caches on a card, where each of its batches has the longest sequence alone."""
        cache, tokens = self.new_cache(), self.deployment.longest_tokens
        return float(self.batches * cache.need_bytes(cache.blocks(tokens), tokens))

    @property
    def has_room(self) -> bool:
        """Whether the longest sequence has room for its cache while there is no other, and what is below it too."""
        fits = self.new_cache().ever_has_room(self.deployment.longest_tokens)
        return self.has_room_below and self.cache_bytes > 0 and fits

    @property
    def host_room_bytes(self) -> float:
        """What a card's part of host memory leaves for caches."""
        kept = sum(tier.capacity_bytes for tier in self.tiers if tier.name == HOST_TIER)
        return self.share_of(self.deployment.cluster.node.ddr.capacity.value) - sum(self.memory.host.values()) - kept

    @property
    def has_room_below(self) -> bool:
        """Whether host memory and drives hold what they are to hold, caches apart."""
        drives = self.deployment.cluster.node.nvme
        kept = sum(tier.capacity_bytes for tier in self.tiers if tier.name == DRIVE_TIER)
        room = 0.0 if drives is None else self.share_of(drives.capacity.value)
        return self.host_room_bytes >= 0.0 and self.memory.drives_bytes + kept <= room

    def share_of(self, node_bytes: float) -> float:
        """A card's part of what its node has."""
        cluster = self.deployment.cluster
        return node_bytes / min(cluster.accelerators, cluster.node.accelerators)

    def new_tiers(self) -> LowerTiers | None:
        """The tiers below one batch's caches; None where there are none."""
        parts = [replace(tier, capacity_bytes=tier.capacity_bytes / self.batches) for tier in self.tiers]
        return LowerTiers(tuple(parts)) if parts else None

    def new_cache(self) -> CachePool:
        """Room for the caches of one batch."""
        cache = self.memory.cache

        def fixed_bytes(longest: int) -> float:
            return cache.bytes_of(longest) - cache.token_bytes * longest

        return CachePool(self.cache_bytes / self.batches, cache.token_bytes, fixed_bytes, self.block_tokens)
