"""An engine: ranks that go through their iterations in step, because they share experts.

An iteration lasts as long as its slowest rank. Iterations in a row that only decode, and of which none is the last of a
sequence, are one event: their time is the one in their middle, which is exact as far as it grows linearly with the
contexts. A request that comes meanwhile waits for iterations, not for the end of the row.

The host makes up an iteration while the device is at the one before, as vLLM's asynchronous scheduling and the overlap
schedulers of SGLang and TensorRT-LLM do. So what scheduling takes is hidden, who comes while sequences run is in the
next iteration but one, and the kernels of prompts are launched from the beginning of the iteration before, if that is
one that is replayed in one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import simpy

from simulator.forecast.serving.plan import Plan
from simulator.forecast.serving.pricing import Load
from simulator.forecast.serving.rank import Rank
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
    contexts: float
    """Tokens that all of them attended to, in the middle of them."""
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

    @property
    def replayed(self) -> bool:
        """Whether one launch is all that the host does for an iteration that only decodes."""

    def together(self, loads: Many[Load]) -> npt.NDArray[np.float64]:
        """`pricing.FIGURES` of an iteration of ranks with *loads*."""

    def led(self, figures: npt.NDArray[np.float64], lead_s: float) -> npt.NDArray[np.float64]:
        """Those of one that the host began to launch *lead_s* before the device was free for it."""

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
        receive_every: int = 1,
    ) -> None:
        self._env, self.ranks, self._pricing = env, list(ranks), pricing
        self._ended, self._observe, self._receive_every = ended, observe, receive_every
        self._come: list[Sequence] = []
        """Requests that it has not looked at."""
        self._seen: list[Sequence] = []
        """Those that it has, which miss the next iteration: that one is made up."""
        self._since = 0
        """Iterations since it looked, unless prompts were among them."""
        self._lead_ns = 0
        """How long the device is at the iteration during which the next one's kernels are launched."""
        self._called: simpy.Event | None = None
        env.process(self._run())

    def submit(self, sequence: Sequence) -> None:
        """*sequence* comes; the engine hears of it when it looks."""
        calls = not self._come
        self._come.append(sequence)
        if calls and self._called is not None and not self._called.triggered:
            self._called.succeed()

    def _look(self) -> None:
        """What came will be in the iteration after the one that is made up."""
        self._seen.extend(self._come)
        self._come.clear()
        self._since = 0

    def _deal(self) -> None:
        """What was seen queues at the rank that has least to do."""
        for sequence in self._seen:
            min(self.ranks, key=lambda rank: rank.under_way).waiting.append(sequence)
        self._seen.clear()

    @property
    def under_way(self) -> int:
        """Sequences that it has to do with, on all ranks."""
        return sum(rank.under_way for rank in self.ranks) + len(self._come) + len(self._seen)

    def _run(self) -> Generator[simpy.Event, object, None]:
        while True:
            idle = not any(rank.running for rank in self.ranks)
            self._deal()
            if idle or self._since >= self._receive_every:
                self._look()
            if idle:
                self._deal()
            plans = [rank.plan() for rank in self.ranks]
            if not any(plan.chunks or plan.decodes for plan in plans):
                self._lead_ns = 0
                self._called = self._env.event()
                yield self._called
                continue
            yield from self._row(plans)

    def _row(self, plans: list[Plan]) -> Generator[simpy.Event, object, None]:
        pairs = list(zip(self.ranks, plans, strict=True))
        prompts = sum(tokens for plan in plans for _, tokens in plan.chunks)
        often = self._receive_every == 1
        alone = bool(self._seen) or any(plan.chunks or plan.loaded_s for plan in plans)
        count = 1 if alone else LONGEST_ROW if often else self._receive_every - self._since
        for rank, plan in pairs:
            count = rank.stretch(plan, count) if plan.decodes else count
        loads = [_load(rank, plan, count) for rank, plan in pairs]
        figures = self._pricing.led(self._pricing.together(loads), self._lead_ns / 1e9)
        each_ns = max(1, self._pricing.duration_ns(figures))
        begin_ns = int(self._env.now)
        yield from self._wait(count, each_ns, heeds_calls=often)
        now_ns = int(self._env.now)
        count = (now_ns - begin_ns) // each_ns
        decoding = sum(rank.decoding for rank, plan in pairs if plan.decodes)
        used_bytes = max(rank.used_bytes_after(plan, count) for rank, plan in pairs)
        running = sum(rank.running for rank in self.ranks)
        ended = [one for rank, plan in pairs for one in rank.go(plan, count, now_ns)]
        # While an iteration is launched kernel by kernel, no other is.
        self._lead_ns = each_ns if self._pricing.replayed and not prompts else 0
        self._since = self._receive_every if prompts else self._since + count
        self._observe(
            Row(
                begin_ns,
                now_ns,
                count,
                decoding,
                sum(load.contexts for load in loads),
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

    def _wait(self, count: int, each_ns: int, *, heeds_calls: bool) -> Generator[simpy.Event, object, None]:
        """For *count* iterations, or until the end of the one in which a request calls."""
        begin_ns, end = self._env.now, self._env.timeout(count * each_ns)
        if count == 1 or not heeds_calls:
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
