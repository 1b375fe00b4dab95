"""What a trace says beyond popularity: how it drifts, which experts go together, and how far a token is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.routing.placement import Placement
from simulator.routing.recording import Batch
from simulator.routing.table import FloatArray, IntArray
from simulator.routing.tokens import draw_tokens
from simulator.routing.trace import Trace

SEED = 20_260_523
"""Of what is drawn for comparison, so that a statistic of a trace is always the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """How far popularity moves from one window of steps to the next, and from the first to the last."""

    next_window: FloatArray
    """Share of assignments that change experts between neighbouring windows, mean over pairs, [layers]."""
    first_to_last: FloatArray
    by_chance: FloatArray
    """What neighbouring windows would show if popularity stood still and only tokens were drawn, [layers]."""


def drift(trace: Trace) -> Drift | None:
    """Total variation distance between windows' popularity; None with a single window."""
    counts = trace.counts.sum(axis=1)
    if len(counts) < 2:
        return None
    total = counts.sum(axis=2, keepdims=True)
    known = (total > 0).all(axis=(0, 2))
    share = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    steps = 0.5 * np.abs(np.diff(share, axis=0)).sum(axis=2).mean(axis=0)
    overall = 0.5 * np.abs(share[-1] - share[0]).sum(axis=1)
    # The difference of two shares of n and m draws is near normal, whose mean absolute value is sigma * sqrt(2 / pi).
    mean = counts.sum(axis=0) / counts.sum(axis=(0, 2))[:, None]
    draws = np.maximum(total[..., 0], 1.0)
    widths = np.sqrt(1 / draws[1:] + 1 / draws[:-1]).mean(axis=0)
    chance = 0.5 * np.sqrt(2 / np.pi) * np.sqrt(mean * (1 - mean)).sum(axis=1) * widths
    return Drift(*(np.where(known, row, np.nan) for row in (steps, overall, chance)))


def coactivation(picks: IntArray, experts: int) -> IntArray:
    """How often two experts served the same token of *picks* [tokens, top_k]: [experts, experts], 0 on the diagonal."""
    first, second = np.triu_indices(picks.shape[1], 1)
    a, b = picks[:, first].ravel(), picks[:, second].ravel()
    both = (a >= 0) & (b >= 0)
    pairs = np.bincount(a[both] * experts + b[both], minlength=experts**2).reshape(experts, experts)
    return np.asarray(pairs + pairs.T)


def togetherness(trace: Trace) -> FloatArray | None:
    """Share of a token's pairs of experts that independent choices of the same popularity would not make, [layers].

    Total variation distance between observed pairs and those of tokens drawn from the popularity, less the same
    distance between two such draws, which is chance. None where tokens or pairs were not recorded.
    """
    if trace.picks is None or trace.picks.shape[2] < 2:
        return None
    rng = np.random.default_rng(SEED)
    found = []
    for picks in trace.picks:
        experts = trace.counts.shape[3]
        tokens, top_k = picks.shape
        popularity = np.bincount(picks[picks >= 0], minlength=experts).astype(np.float64)
        drawn = [coactivation(draw_tokens(popularity, tokens, top_k, rng), experts) for _ in range(2)]
        observed = coactivation(picks, experts)
        found.append(_distance(observed, drawn[0]) - _distance(drawn[1], drawn[0]))
    return np.array(found)


def _distance(a: IntArray, b: IntArray) -> float:
    return float(0.5 * np.abs(a / max(1, a.sum()) - b / max(1, b.sum())).sum())


@dataclass(frozen=True, slots=True, eq=False)
class FanOut:
    """To how many places a token is sent, [layers] each: what deduplicating dispatchers send is in proportion."""

    ranks_per_token: FloatArray
    nodes_per_token: FloatArray


def fan_out(batches: Iterable[Batch], layers: Sequence[int], placement: Placement, ranks_per_node: int) -> FanOut:
    """Exact means over the tokens in *batches*, those of a recording or of :func:`sampled`.

    Row i of *placement* is that of the layer numbered *layers[i]*; batches of other layers, and those without tokens,
    are passed over. Copies of an expert serve tokens in turn.
    """
    row = {number: at for at, number in enumerate(layers)}
    homes = [_homes(slots, placement.experts) for slots in placement.slots]
    sums = np.zeros((len(layers), 3))
    for batch in batches:
        if batch.picks is not None and batch.layer in row:
            sums[row[batch.layer]] += _places(batch.picks, *homes[row[batch.layer]], ranks_per_node)
    tokens = np.maximum(sums[:, 2], 1)
    return FanOut(sums[:, 0] / tokens, sums[:, 1] / tokens)


def sampled(trace: Trace) -> Iterator[Batch]:
    """The tokens that *trace* keeps, layer by layer."""
    for layer, picks in zip(trace.layers, trace.picks if trace.picks is not None else (), strict=False):
        yield Batch(layer, picks=picks)


def _homes(slots: IntArray, experts: int) -> tuple[IntArray, IntArray]:
    """The ranks of each expert's copies, [experts, most copies], and how many there are, [experts]."""
    rank, expert = np.repeat(np.arange(len(slots)), slots.shape[1]), slots.ravel()
    copies = np.bincount(expert, minlength=experts)
    order = np.argsort(expert, kind="stable")
    turn = np.arange(expert.size) - np.repeat(np.cumsum(copies) - copies, copies)
    home = np.zeros((experts, copies.max()), dtype=np.int64)
    home[expert[order], turn] = rank[order]
    return home, copies


def _places(picks: IntArray, home: IntArray, copies: IntArray, ranks_per_node: int) -> tuple[int, int, int]:
    """Distinct ranks, distinct nodes and tokens, each summed over *picks* [tokens, top_k]."""
    turn = np.arange(len(picks))[:, None] % copies[picks]
    rank = np.sort(np.where(picks >= 0, home[picks, turn], -1), axis=1)
    return _distinct(rank), _distinct(rank // ranks_per_node), int((picks >= 0).any(axis=1).sum())


def _distinct(ascending: IntArray) -> int:
    fresh = ascending >= 0
    fresh[:, 1:] &= ascending[:, 1:] != ascending[:, :-1]
    return int(fresh.sum())
