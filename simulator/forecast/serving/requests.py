"""Requests: who comes when, with how long a prompt, and how long an answer he gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simulator.forecast.scenario_serving import Requests
from simulator.forecast.serving.request_traces import read_requests

TEN_TIMES = 10
"""Requests for each of a concurrency, as benchmarks ask for."""
AT_A_RATE = 1000
"""Requests where they come at a rate."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and its answer."""

    arrival_ns: int
    """0 where it comes as soon as another ends."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Of the prompt, those that are in the cache already, whatever else is there."""
    hash_ids: tuple[int, ...] = ()
    """Of the prompt's blocks, equal where prompts begin alike; nothing where that is not known."""

    @property
    def longest(self) -> int:
        """Tokens in the cache at its end: the last one of the answer goes nowhere."""
        return self.prompt_tokens + self.output_tokens - 1

    @property
    def prompt_alone(self) -> Request:
        """What is computed of it where prompts are apart: up to the first token of the answer."""
        return replace(self, output_tokens=1)


def requests(asked: Requests, folder: Path) -> list[Request]:
    """All of them in order of arrival. Raise what reading a trace raises."""
    if asked.trace is not None:
        found = [_cached(Request(*row), asked) for row in read_requests(asked.trace, folder)]
        return found[: asked.count]
    rng = np.random.default_rng(asked.seed)
    count = request_count(asked)
    prompts = _lengths(asked.prompt_tokens or 1, asked.least_share, count, rng)
    outputs = _lengths(asked.output_tokens or 1, asked.least_share, count, rng)
    arrivals = np.zeros(count, np.int64)
    if asked.rate_per_s is not None:
        arrivals = np.cumsum(rng.exponential(1e9 / asked.rate_per_s, count)).astype(np.int64)
    rows = zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    return [_cached(Request(*row), asked) for row in rows]


def request_count(asked: Requests) -> int:
    """Of requests that are not of a trace."""
    if asked.count is not None:
        return asked.count
    return TEN_TIMES * asked.concurrency if asked.concurrency is not None else AT_A_RATE


def _lengths(longest: int, least_share: float, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Even between the shortest and the *longest*, both included."""
    return rng.integers(max(1, ceil(longest * least_share)), longest, count, endpoint=True)


def _cached(request: Request, asked: Requests) -> Request:
    """A prefix cache leaves at least the last token of a prompt to be computed."""
    if not asked.cached_share:
        return request
    there = min(int(request.prompt_tokens * asked.cached_share), request.prompt_tokens - 1)
    return Request(request.arrival_ns, request.prompt_tokens, request.output_tokens, there)
