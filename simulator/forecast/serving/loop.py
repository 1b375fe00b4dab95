"""The serving loop: requests through engines on one clock, as SimPy events.

Engines that share no requests and no experts are alike: one is simulated, and of its ranks at most `MOST_RANKS`, with
their part of the requests. Where prefill is apart, all engines of both pools are there, and all ranks where fewer
requests than ranks are under way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import TypeVar

import simpy

from simulator.forecast.scenario_front_end import FrontEnd as AskedFrontEnd
from simulator.forecast.serving.engine import Engine, Row
from simulator.forecast.serving.front_end import FrontEnd
from simulator.forecast.serving.hand_over import HandOver
from simulator.forecast.serving.pool import Pool
from simulator.forecast.serving.prefix_cache import PrefixCache
from simulator.forecast.serving.pricing import IterationPrices
from simulator.forecast.serving.rank import Rank
from simulator.forecast.serving.requests import Request
from simulator.forecast.serving.sequence import Sequence
from simulator.hardware.cluster import Cluster

Place = TypeVar("Place", Engine, FrontEnd)
MOST_RANKS = 8
"""Ranks of an engine that are simulated at most where each has requests; the others are like them."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How requests come and are dealt."""

    cluster: Cluster
    """All accelerators, of both pools."""
    concurrency: int | None
    """Requests under way at once, as many as there are at most; None: they come when they come."""
    prefilled: bool
    """Their caches come with them."""
    prefix_cache: bool
    front_end: AskedFrontEnd


@dataclass(slots=True)
class Course:
    """What happened."""

    sequences: list[Sequence] = field(default_factory=list)
    """All that ended, in that order."""
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """Iterations by pool: "decode" for the one that decodes, or does all, and "prefill"."""
    ranks: dict[str, list[Rank]] = field(default_factory=dict)
    engines: dict[str, int] = field(default_factory=dict)
    """How many were simulated of each pool."""
    scale: float = 1.0
    """Requests of the whole deployment, for each that was simulated."""
    events: int = 0
    end_ns: int = 0
    sent_bytes: float = 0.0
    """Of caches from prefill to decoding, through the port of each accelerator that prefills: the mean."""


class Loop:
    """The loop of *pools*: the one that decodes, or does all, and perhaps one that prefills."""

    def __init__(self, pools: Many[Pool], prices: Many[IterationPrices], setting: Setting) -> None:
        self._env = simpy.Environment()
        self._setting, self._course = setting, Course()
        self._left = 0
        self._next: Callable[[], None] = _nothing
        self._whole_ranks = pools[0].engines * pools[0].ranks * pools[0].batches
        alone = len(pools) == 1
        self._decode = self._engines("decode", pools[0], prices[0], self._ended, alone=alone)
        self._prefill = [] if alone else self._engines("prefill", pools[1], prices[1], self._prefilled, alone=False)
        self._ways: dict[Engine, HandOver] = {
            engine: HandOver(
                self._env, setting.cluster, [pool.memory.cache for pool in pools], pools[1].ranks, self._arrived
            )
            for engine in self._prefill
        }
        self._senders = pools[-1].engines * pools[-1].ranks
        self._fronts = [self._front(engine, pools[-1]) for engine in self._prefill or self._decode]
        self._from: dict[Sequence, tuple[Sequence, Engine]] = {}

    def run(self, requests: Many[Request], hear: Callable[[float], None]) -> Course:
        """Serve all of *requests* and tell what happened; *hear* is told the share that is done."""
        simulated = self._dealt(requests)
        self._left = total = len(simulated)
        env, course = self._env, self._course
        while self._left:
            env.step()
            course.events += 1
            if course.events % 1000 == 0:
                hear(1 - self._left / total)
        course.end_ns = self._now_ns
        course.sent_bytes = sum(way.sent_bytes for way in self._ways.values()) / self._senders
        return course

    def _engines(
        self, name: str, pool: Pool, prices: IterationPrices, ended: Callable[[Sequence], None], *, alone: bool
    ) -> list[Engine]:
        rows = self._course.rows[name] = []
        count, ranks = (1, self._like_all(pool)) if alone else (pool.engines * pool.batches, pool.ranks)
        engines = [
            Engine(self._env, [self._rank(pool) for _ in range(ranks)], prices, ended, rows.append, pool.receive_every)
            for _ in range(count)
        ]
        self._course.engines[name] = count
        self._course.ranks[name] = [rank for engine in engines for rank in engine.ranks]
        return engines

    def _front(self, engine: Engine, pool: Pool) -> FrontEnd:
        """That of *engine* of *pool*, all ranks of which have it together."""
        return FrontEnd(self._env, self._setting.front_end, engine, pool.ranks * pool.batches / len(engine.ranks))

    def _like_all(self, pool: Pool) -> int:
        """Ranks that show what all do: every one of them where there are fewer requests than ranks."""
        few = self._setting.concurrency is not None and self._setting.concurrency < self._whole_ranks
        return pool.ranks if few else min(MOST_RANKS, pool.ranks)

    def _rank(self, pool: Pool) -> Rank:
        room, tiers = pool.new_cache(), pool.new_tiers()
        return Rank(pool.limits, room, PrefixCache(room, tiers) if self._setting.prefix_cache else None, tiers)

    def _dealt(self, requests: Many[Request]) -> list[Request]:
        """Start the arrivals; the requests that are simulated: those of the ranks that are."""
        ranks = sum(len(engine.ranks) for engine in self._decode)
        whole = ranks if self._prefill else self._whole_ranks
        if self._setting.concurrency is None:
            simulated = [one for n, one in enumerate(requests) if (n + 1) * ranks // whole > n * ranks // whole]
            self._course.scale = len(requests) / max(1, len(simulated))
            self._env.process(self._arrivals(simulated))
            return simulated
        asked = self._setting.concurrency
        at_once = max(1, round(asked * ranks / whole))
        simulated = list(requests[: max(at_once, round(len(requests) * at_once / asked))])
        self._course.scale = asked / at_once
        rest = iter(simulated[at_once:])
        self._next = lambda: self._come(next(rest, None))
        for request in simulated[:at_once]:
            self._come(request)
        return simulated

    def _arrivals(self, requests: Many[Request]) -> Generator[simpy.Event, object, None]:
        for request in requests:
            yield self._env.timeout(request.arrival_ns - self._env.now)
            self._come(request)

    def _come(self, request: Request | None) -> None:
        """A request comes in."""
        if request is None:
            return
        sequence = Sequence(request, self._now_ns)
        if self._setting.prefilled:
            self._arrived(sequence)
        elif self._prefill:
            front = self._least(self._fronts)
            prompt = Sequence(request.prompt_alone, self._now_ns)
            self._from[prompt] = sequence, front.engine
            front.submit(prompt)
        else:
            self._least(self._fronts).submit(sequence)

    def _prefilled(self, prompt: Sequence) -> None:
        sequence, engine = self._from.pop(prompt)
        if sequence.request.output_tokens > 1:
            self._ways[engine].send(sequence)
            return
        sequence.generated, sequence.first_ns, sequence.end_ns = 1, self._now_ns, self._now_ns
        self._ended(sequence)

    def _arrived(self, sequence: Sequence) -> None:
        """The cache of a prompt, and the first token of its answer, are where it will be decoded."""
        sequence.handed_over, sequence.generated, sequence.first_ns = True, 1, self._now_ns
        self._least(self._decode).submit(sequence)

    @property
    def _now_ns(self) -> int:
        return int(self._env.now)

    @staticmethod
    def _least(places: list[Place]) -> Place:
        return min(places, key=lambda place: place.under_way)

    def _ended(self, sequence: Sequence) -> None:
        self._course.sequences.append(sequence)
        self._left -= 1
        self._next()


def _nothing() -> None:
    """What follows the end of a request where others come when they come."""
