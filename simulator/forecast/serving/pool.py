"""Accelerators that do the same for requests: a deployment, what its ranks hold, and what is left for caches."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.forecast.memory import COMMUNICATOR_BYTES, CONTEXT_BYTES
from simulator.forecast.serving.cache_pool import CachePool
from simulator.forecast.serving.rank import Limits
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
        """What is left for caches; negative: missing."""
        return self.usable_bytes - sum(self.held().values())

    def new_cache(self) -> CachePool:
        """Room for the caches of one batch."""
        cache = self.memory.cache

        def fixed_bytes(longest: int) -> float:
            return cache.bytes_of(longest) - cache.token_bytes * longest

        return CachePool(self.cache_bytes / self.batches, cache.token_bytes, fixed_bytes, self.block_tokens)
