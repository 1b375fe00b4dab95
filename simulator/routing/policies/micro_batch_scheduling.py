"""Micro-batches composed by what their sequences route to, and sized by load.

Sequences bound for the same experts are brought together: they are ordered along the direction in which their rows by
expert differ most, and cut into micro-batches such that the heaviest (rows of the busiest rank, summed over layers) is
as light as an order allows. Heavier micro-batches come first. An expert then meets fewer, larger groups of rows, which
suits a grouped GEMM; ranks of one micro-batch are less even for it, and only a forecast tells which counts for more.
The router is assumed to be predictable per sequence, for instance from the sequence's domain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.routing.outcome import Outcome, Setting
from simulator.routing.placement import contiguous
from simulator.routing.policies.data_sampling import lightest_bins
from simulator.routing.sequences import DOMAIN_SPREAD, sequence_rows
from simulator.routing.table import FloatArray, IntArray, RoutingTable


@dataclass(frozen=True, slots=True)
class Options:
    """How different sequences are, and whether alike ones are brought together."""

    spread: float = DOMAIN_SPREAD
    """Standard deviation of log popularity between sequences."""
    together: bool = True
    """False cuts the order of arrival: only the sizes follow the load."""


def apply(planned: RoutingTable, replayed: RoutingTable, setting: Setting, options: Options) -> Outcome:  # noqa: ARG001
    """*planned* does not matter. Raise :exc:`ValueError` with fewer sequences than micro-batches."""
    tokens = setting.sequence_tokens
    if tokens is None:
        tokens = np.full(setting.micro_batches * setting.ep, setting.tokens)
    if tokens.size < setting.micro_batches:
        raise ValueError(f"{tokens.size} sequences do not fill {setting.micro_batches} micro-batches")
    placement = contiguous(replayed.layers, replayed.experts, setting.ep)
    rng = np.random.default_rng(setting.seed)
    rows = sequence_rows(replayed, tokens, setting.top_k, options.spread, rng)
    order = _alike(rows / tokens[:, None, None]) if options.together else np.arange(tokens.size)
    batches = _cut(rows[order].reshape(tokens.size, replayed.layers, setting.ep, -1).sum(axis=3), setting.micro_batches)
    parts = [order[begin:end] for begin, end in batches]
    whole = np.stack([_whole(rows[part].sum(axis=0), int(tokens[part].sum()) * setting.top_k) for part in parts])
    source = np.stack([_deal(tokens[part], setting.ep) for part in parts])
    return Outcome(placement, np.stack([placement.rows(batch) for batch in whole]), source)


def _alike(share: FloatArray) -> IntArray:
    """An order of sequences in which neighbours route alike: along the first principal component."""
    centred = share.reshape(len(share), -1)
    centred = centred - centred.mean(axis=0)
    # The Gram matrix is as small as the number of sequences.
    _, vectors = np.linalg.eigh(centred @ centred.T)
    leading = vectors[:, -1]
    return np.argsort(leading * np.sign(leading[np.abs(leading).argmax()]), kind="stable")


def _cut(rank_rows: FloatArray, parts: int) -> list[tuple[int, int]]:
    """Cut sequences [sequences, layers, ranks] into *parts* runs, the heaviest as light as possible, heaviest first."""
    sums = np.concatenate([np.zeros_like(rank_rows[:1]), np.cumsum(rank_rows, axis=0)])

    def weight(begin: int, end: int) -> float:
        return float((sums[end] - sums[begin]).max(axis=1).sum())

    low, high = weight(0, len(rank_rows)) / parts / 2, weight(0, len(rank_rows))
    for _ in range(40):
        middle = (low + high) / 2
        if _fill(weight, len(rank_rows), parts, middle) is None:
            low = middle
        else:
            high = middle
    runs = _fill(weight, len(rank_rows), parts, high) or []
    return sorted(runs, key=lambda run: -weight(*run))


def _fill(
    weight: Callable[[int, int], float], sequences: int, parts: int, limit: float
) -> list[tuple[int, int]] | None:
    """Runs no heavier than *limit*, filled greedily, at least one sequence each; None when they do not suffice."""
    runs, begin = [], 0
    for part in range(parts):
        last = sequences - (parts - part - 1)
        low, high = begin, last
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if weight(begin, middle) <= limit else (low, middle - 1)
        if low == begin:
            return None
        runs.append((begin, low))
        begin = low
    return runs if begin == sequences else None


def _whole(rows: FloatArray, total: int) -> IntArray:
    """*rows* [layers, experts] as whole numbers that sum to *total* in each layer, by largest remainder."""
    rows = rows * (total / rows.sum(axis=1, keepdims=True))
    floor = np.floor(rows).astype(np.int64)
    rank = np.argsort(np.argsort(floor - rows, axis=1, kind="stable"), axis=1, kind="stable")
    return np.asarray(floor + (rank < total - floor.sum(axis=1, keepdims=True)))


def _deal(tokens: IntArray, ranks: int) -> IntArray:
    """Tokens of each rank when sequences go to the lightest rank, longest first."""
    return np.bincount(lightest_bins(tokens[:, None], ranks), weights=tokens, minlength=ranks).astype(np.int64)
