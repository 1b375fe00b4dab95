"""An engine: ranks that go through their iterations in step, because they share experts.

An iteration lasts as long as its slowest rank. Iterations in a row that only decode, and of which none is the last of a
sequence, are one event: their time is the one in their middle, which is exact as far as it grows linearly with the
contexts. A request that comes meanwhile waits for the end of the iteration, not of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import simpy

from simulator.forecast.serving.pricing import Load
from simulator.forecast.serving.rank import Plan, Rank
from simulator.forecast.serving.sequence import Sequence

LONGEST_ROW = 256
"""Iterations that are one event at most."""


@dataclass(frozen=True, slots=True)
class Row:
    """Iterations of an engine that were alike."""

    begin_ns: int
    end_ns: int
    iterations: int
    decoding: int
    """Sequences that decoded in each, on all ranks."""
    prompt_tokens: int
    """Tokens of prompts that each computed, on all ranks."""
    running: int
    """Sequences that had been taken in, on all ranks."""
    waiting: int
    """Those that had not, at the end."""
    used_bytes: int
    """Of caches on the fullest rank, before those that end give theirs back."""
    ranks: int
    """Of the engine."""
    figures: npt.NDArray[np.float64]
    """Of one of them, as `pricing.FIGURES` names them."""


class Pricing(Protocol):
    """What iterations of an engine cost."""

    def together(self, loads: Many[Load]) -> npt.NDArray[np.float64]:
        """`pricing.FIGURES` of an iteration of ranks with *loads*."""

    def duration_ns(self, figures: npt.NDArray[np.float64]) -> int:
        """Of such an iteration."""


class Engine:
    """Ranks, on the clock *env*."""

    def __init__(
        self,
        env: simpy.Environment,
        ranks: Iterable[Rank],
        pricing: Pricing,
        ended: Callable[[Sequence], None],
        observe: Callable[[Row], None],
    ) -> None:
        self._env, self.ranks, self._pricing = env, list(ranks), pricing
        self._ended, self._observe = ended, observe
        self._called: simpy.Event | None = None
        env.process(self._run())

    def submit(self, sequence: Sequence) -> None:
        """*sequence* queues at the rank that has least to do."""
        rank = min(self.ranks, key=lambda rank: rank.under_way)
        calls = not rank.waiting
        rank.waiting.append(sequence)
        if calls and self._called is not None and not self._called.triggered:
            self._called.succeed()

    @property
    def under_way(self) -> int:
        """Sequences that it has to do with, on all ranks."""
        return sum(rank.under_way for rank in self.ranks)

    def _run(self) -> Generator[simpy.Event, object, None]:
        while True:
            plans = [rank.plan() for rank in self.ranks]
            if not any(plan.chunks or plan.decodes for plan in plans):
                self._called = self._env.event()
                yield self._called
                continue
            yield from self._row(plans)

    def _row(self, plans: list[Plan]) -> Generator[simpy.Event, object, None]:
        pairs = list(zip(self.ranks, plans, strict=True))
        count = LONGEST_ROW
        if any(plan.chunks or plan.loaded_s for plan in plans):
            count = 1
        for rank, plan in pairs:
            count = rank.stretch(count) if plan.decodes else count
        figures = self._pricing.together([_load(rank, plan, count) for rank, plan in pairs])
        each_ns = max(1, self._pricing.duration_ns(figures))
        begin_ns = int(self._env.now)
        yield from self._wait(count, each_ns)
        now_ns = int(self._env.now)
        count = (now_ns - begin_ns) // each_ns
        decoding = sum(rank.decoding for rank, plan in pairs if plan.decodes)
        used_bytes = max(rank.pool.used_bytes for rank in self.ranks)
        running = sum(rank.running for rank in self.ranks)
        ended = [one for rank, plan in pairs for one in rank.go(plan, count, now_ns)]
        prompts = sum(tokens for plan in plans for _, tokens in plan.chunks)
        self._observe(
            Row(
                begin_ns,
                now_ns,
                count,
                decoding,
                prompts,
                running,
                sum(len(rank.waiting) for rank in self.ranks),
                used_bytes,
                len(self.ranks),
                figures,
            )
        )
        for sequence in ended:
            self._ended(sequence)

    def _wait(self, count: int, each_ns: int) -> Generator[simpy.Event, object, None]:
        """For *count* iterations, or until the end of the one in which a request calls."""
        begin_ns, end = self._env.now, self._env.timeout(count * each_ns)
        if count == 1:
            self._called = None
            yield end
            return
        self._called = self._env.event()
        yield end | self._called
        if not end.processed:
            whole = -(-(self._env.now - begin_ns) // each_ns)
            rest = max(1, whole) * each_ns - (self._env.now - begin_ns)
            if rest:
                yield self._env.timeout(rest)


def _load(rank: Rank, plan: Plan, iterations: int) -> Load:
    """What *rank* computes in the middle of *iterations* iterations of *plan*."""
    decoding = rank.decoding if plan.decodes else 0
    contexts = rank.contexts + decoding * (iterations - 1) / 2 if decoding else 0.0
    chunks = tuple((tokens, sequence.cached) for sequence, tokens in plan.chunks)
    return Load(chunks, decoding, contexts, plan.loaded_s)
