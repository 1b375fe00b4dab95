"""Named routing workloads for comparing schedulers, by the names that Megatron-LM pull request 7488 gives them.

What a workload's tokens choose depends on its name, a seed and the step alone, so the same logical workload can be run
under any placement or policy; the number of ranks only says which experts a rank is meant to own and who brings which
tokens. Each isolates one thing; the construction is this file's own and the figures are not those of that benchmark.

Balanced means that experts take turns, in an order (that of van der Corput) of which any few neighbours already lie all
over the expert range. So no rank idles as long as a step has three picks a rank, and whole turns are exactly even.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from simulator.documents import Problem
from simulator.documents.problem import nearest
from simulator.routing.error import RoutingError
from simulator.routing.recording import Batch, Hear, Recording
from simulator.routing.table import FloatArray, IntArray, RoutingTable
from simulator.routing.tokens import draw_tokens

HOT_SHARE = 0.8
"""Of all picks, what the hot experts of a hot workload take together."""
HOT_PART = 8
"""One in so many experts is hot, but at least as many as a token picks."""
ROTATION_STEPS = 3
BURST_PERIOD = 8
BURST_STEP = 3
SAMPLE_TOKENS = 1024
"""Tokens of a rank that are drawn where only popularity is asked for."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The layer and the group of ranks."""

    experts: int
    top_k: int
    ranks: int
    tokens: int
    """Tokens of a rank in a step, on average."""


_Weights = Callable[[Shape, int, int], FloatArray]


def workload_names() -> list[str]:
    """The workloads there are."""
    return list(_PICKS)


def workload_picks(name: str, seed: int, step: int, shape: Shape) -> list[IntArray]:
    """The experts of each token that each rank brings: for each rank [tokens, top_k], every row different ones.

    Raise :exc:`RoutingError` for an unknown name, or a shape that the workload cannot have.
    """
    if name not in _PICKS:
        raise RoutingError([Problem("workload", None, "", f"no workload {name!r}; {nearest(name, _PICKS)}")])
    problems = list(_problems(shape))
    if problems:
        raise RoutingError(Problem("workload", None, name, problem) for problem in problems)
    return _PICKS[name](shape, seed, step)


def workload(name: str, seed: int, steps: int, shape: Shape, layers: int = 1) -> Recording:
    """*steps* steps of the workload *name* as a recording; all *layers* layers route alike."""
    workload_picks(name, seed, 0, shape)

    def batches(hear: Hear) -> Iterator[Batch]:
        for step in range(steps):
            for source, picks in enumerate(workload_picks(name, seed, step, shape)):
                for layer in range(layers):
                    yield Batch(layer, step, source, picks=picks)
            hear((step + 1) / steps)

    return Recording(name, batches, f"workload {name}, seed {seed}", numbered=False, experts=shape.experts)


def workload_table(name: str, seed: int, step: int, layers: int, shape: Shape) -> RoutingTable:
    """How popular experts are in one step of the workload *name*, alike in all *layers* layers.

    Of the tokens of each rank, at most :data:`SAMPLE_TOKENS` are drawn. Raise what :func:`workload_picks` raises.
    """
    picks = workload_picks(name, seed, step, replace(shape, tokens=min(shape.tokens, SAMPLE_TOKENS)))
    counts = np.bincount(np.concatenate(picks).ravel(), minlength=shape.experts).astype(np.float64)
    return RoutingTable(np.tile(counts, (layers, 1)), f"{name}, seed {seed}, step {step}")


def _problems(shape: Shape) -> Iterator[str]:
    if shape.ranks < 1 or shape.experts % shape.ranks:
        yield f"{shape.experts} experts do not divide over {shape.ranks} ranks"
    if not 1 <= shape.top_k <= shape.experts // 2:
        yield f"top_k is {shape.top_k}, expected 1 to {shape.experts // 2}, half of the experts"
    if shape.tokens < 1:
        yield f"tokens is {shape.tokens}, expected at least 1"


def _balanced(shape: Shape, seed: int, step: int) -> list[IntArray]:
    return _in_turn(shape, seed, step, shape.experts, np.full(shape.ranks, shape.tokens))


def _source_ragged(shape: Shape, seed: int, step: int) -> list[IntArray]:
    return _in_turn(shape, seed, step, shape.experts, ragged_tokens(shape, seed))


def ragged_tokens(shape: Shape, seed: int) -> IntArray:
    """Tokens of each rank of W4_source_ragged, [ranks]: from a quarter to seven quarters of the mean, evenly spaced,
    whichever rank the seed gives them to.
    """
    share = np.linspace(0.25, 1.75, shape.ranks) if shape.ranks > 1 else np.ones(1)
    ends = np.round(np.cumsum(share) * shape.tokens).astype(np.int64)
    return np.random.default_rng([seed]).permutation(np.diff(ends, prepend=0))


def _zero_expert_rank(shape: Shape, seed: int, step: int) -> list[IntArray]:
    """The upper half of the experts, and the ranks that own them, get nothing."""
    return _in_turn(shape, seed, step, shape.experts // 2, np.full(shape.ranks, shape.tokens))


def _in_turn(shape: Shape, seed: int, step: int, experts: int, tokens: IntArray) -> list[IntArray]:
    start = int(np.random.default_rng([seed, step]).integers(experts))
    turn = start + np.arange(int(tokens.sum()) * shape.top_k)
    picks = _scattered(experts)[turn % experts].reshape(-1, shape.top_k)
    return np.split(picks, np.cumsum(tokens)[:-1])


def _scattered(experts: int) -> IntArray:
    """All experts, in the order of their bits read backwards."""
    bits = max(1, (experts - 1).bit_length())
    backwards = [int(f"{expert:0{bits}b}"[::-1], 2) for expert in range(experts)]
    return np.argsort(np.argsort(backwards))


def _drawn(number: int, weights: _Weights) -> Callable[[Shape, int, int], list[IntArray]]:
    def picks(shape: Shape, seed: int, step: int) -> list[IntArray]:
        rng = np.random.default_rng([seed, step, number])
        drawn = draw_tokens(weights(shape, seed, step), shape.ranks * shape.tokens, shape.top_k, rng)
        return np.split(drawn, shape.ranks)

    return picks


def _hot_set(shape: Shape, seed: int, step: int) -> FloatArray:  # noqa: ARG001, the same in every step
    """Experts anywhere, as many as are hot."""
    return _heated(shape, np.random.default_rng([seed]).permutation(shape.experts)[: _hot_experts(shape)])


def _hot_rank(shape: Shape, seed: int, step: int) -> FloatArray:  # noqa: ARG001, the same in every step
    """Experts of one rank, each as hot as those of the hot set."""
    return _heated(shape, _hot_rank_experts(shape, seed))


def _spread(shape: Shape, seed: int, step: int) -> FloatArray:  # noqa: ARG001, the same in every step
    """As many experts as on the hot rank, as hot, evenly over the layout."""
    many = _hot_rank_experts(shape, seed).size
    first = int(np.random.default_rng([seed]).integers(shape.experts))
    return _heated(shape, (first + np.arange(many) * shape.experts // many) % shape.experts)


def _rotating(shape: Shape, seed: int, step: int) -> FloatArray:
    """Neighbouring experts, as many as are hot, the next ones every few steps."""
    many = _hot_experts(shape)
    first = int(np.random.default_rng([seed]).integers(shape.experts)) + step // ROTATION_STEPS * many
    return _heated(shape, (first + np.arange(many)) % shape.experts)


def _burst(shape: Shape, seed: int, step: int) -> list[IntArray]:
    """Balanced, then a hot rank in one step, then half as hot in each of the next; again from step 8 on."""
    after = step % BURST_PERIOD - BURST_STEP
    if after < 0:
        return _balanced(shape, seed, step)
    even = np.ones(shape.experts) / shape.experts
    hot = _heated(shape, _hot_rank_experts(shape, seed))
    heat = 0.5**after
    return _drawn(7, lambda *_: heat * hot + (1 - heat) * even)(shape, seed, step)


def _hot_experts(shape: Shape) -> int:
    return max(shape.top_k, shape.experts // HOT_PART)


def _hot_rank_experts(shape: Shape, seed: int) -> IntArray:
    width = shape.experts // shape.ranks
    rank = int(np.random.default_rng([seed]).integers(shape.ranks))
    return rank * width + np.arange(min(width, _hot_experts(shape)))


def _heated(shape: Shape, hot: IntArray) -> FloatArray:
    """Popularity that sums to 1, in which each of *hot* has the share that a hot expert has."""
    share = HOT_SHARE / _hot_experts(shape)
    weights = np.full(shape.experts, (1 - share * hot.size) / (shape.experts - hot.size))
    weights[hot] = share
    return weights


_PICKS: dict[str, Callable[[Shape, int, int], list[IntArray]]] = {
    "W0_balanced": _balanced,
    "W1_hot_expert_set": _drawn(1, _hot_set),
    "W2_hot_rank": _drawn(2, _hot_rank),
    "W3_spread_hot_experts": _drawn(3, _spread),
    "W4_source_ragged": _source_ragged,
    "W5_zero_expert_rank": _zero_expert_rank,
    "W6_rotating_hotspot": _drawn(6, _rotating),
    "W7_burst": _burst,
}
