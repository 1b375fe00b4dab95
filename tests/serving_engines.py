"""Engines whose iterations all take a millisecond, for tests that count them."""

import numpy as np
import simpy

from simulator.forecast.serving.cache_pool import CachePool
from simulator.forecast.serving.engine import Engine, Row
from simulator.forecast.serving.plan import Limits
from simulator.forecast.serving.pricing import FIGURES
from simulator.forecast.serving.rank import Rank
from simulator.forecast.serving.requests import Request
from simulator.forecast.serving.sequence import Sequence

MILLISECOND = 1_000_000


class Steady:
    """Every iteration takes a millisecond."""

    replayed = True

    def together(self, loads):
        assert all(load.chunks or load.decoding or not load.contexts for load in loads)
        return np.zeros(len(FIGURES))

    def led(self, figures, lead_s):
        del lead_s
        return figures

    def duration_ns(self, figures):
        del figures
        return MILLISECOND


class Small:
    """An engine of *ranks* ranks with room for so many tokens each, on a clock of its own."""

    def __init__(self, tokens=1000, ranks=1, prefixes=None, block_tokens=10, receive_every=1, pricing=None, **limits):
        asked = {"max_sequences": 8, "max_batch_tokens": 100, "mixed": True} | limits
        self.env, self.ended, self.rows = simpy.Environment(), list[Sequence](), list[Row]()
        pools = [CachePool(tokens, 1.0, lambda _: 0.0, block_tokens) for _ in range(ranks)]
        self.ranks = [Rank(Limits(**asked), pool, prefixes(pool) if prefixes else None) for pool in pools]
        costs = pricing or Steady()
        self.engine = Engine(self.env, self.ranks, costs, self.ended.append, self.rows.append, receive_every)

    def submit(self, prompt, output, **more):
        """A request that comes now."""
        sequence = Sequence(Request(0, prompt, output, **more), int(self.env.now))
        self.engine.submit(sequence)
        return sequence

    def run(self, *requests):
        """Serve *requests*, pairs of lengths that all come at once, to their end."""
        sequences = [self.submit(*request) for request in requests]
        self.env.run()
        return sequences


def ms(*times_ns):
    return tuple(time / MILLISECOND for time in times_ns)
