"""Caches from accelerators that prefill to those that decode, through the fabric.

Each rank sends what it holds of a prompt's cache to those that will have it, over the level that holds all
accelerators, one prompt after the other; sends of different ranks do not share links, since each has its port. Where
pools split a cache in unlike parts, the larger part goes through the port of the accelerator that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from collections.abc import Sequence as Many

import numpy as np
import simpy

from simulator.forecast.serving.sequence import Sequence
from simulator.hardware.cluster import Cluster
from simulator.model.serving.held import CacheNeed
from simulator.program.sends import send_times


class HandOver:
    """The way out of one engine that prefills, whose *ranks* send at the same time; *caches* are what an accelerator of
    either pool has of a sequence.
    """

    def __init__(
        self,
        env: simpy.Environment,
        cluster: Cluster,
        caches: Many[CacheNeed],
        ranks: int,
        arrived: Callable[[Sequence], None],
    ) -> None:
        self._env, self._cluster, self._caches, self._arrived = env, cluster, caches, arrived
        self._ports = simpy.Resource(env, capacity=ranks)
        self.sent_bytes = 0.0
        """Of each sequence, what goes through the port of one accelerator."""

    def send(self, sequence: Sequence) -> None:
        """Begin to send the cache of *sequence*'s prompt."""
        self._env.process(self._sent(sequence))

    def _sent(self, sequence: Sequence) -> Generator[simpy.Event, object, None]:
        size = max(cache.bytes_of(sequence.request.prompt_tokens) for cache in self._caches)
        with self._ports.request() as port:
            yield port
            yield self._env.timeout(send_ns(self._cluster, size))
        self.sent_bytes += size
        self._arrived(sequence)


def send_ns(cluster: Cluster, size: float) -> int:
    """Of *size* bytes from one accelerator to another one far off."""
    busy_s, wait_s = send_times(cluster, np.array([len(cluster.levels) - 1]), size)
    return round(1e9 * float(busy_s.sum() + wait_s.sum()))
