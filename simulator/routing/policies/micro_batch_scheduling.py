"""Micro-batches composed by what their sequences route to, and sized by load.

Sequences bound for the same experts are brought together: their domains are ordered along the direction in which rows
by expert differ most, and the order is cut into micro-batches such that the heaviest (rows of the busiest rank, summed
over layers) is as light as an order allows. A cut leaves every rank as many sequences. Heavier micro-batches come
first. An expert then meets fewer, larger groups of rows, which suits a grouped GEMM; ranks of one micro-batch are less
even for it, and only a forecast tells which counts for more. A sequence's domain is assumed to be known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.routing.outcome import Outcome, Setting, composed
from simulator.routing.placement import contiguous
from simulator.routing.policies.data_sampling import lightest_bins
from simulator.routing.table import FloatArray, RoutingTable


@dataclass(frozen=True, slots=True)
class Options:
    """Whether alike sequences are brought together."""

    together: bool = True
    """False cuts the order of arrival: only the sizes follow the load."""


def apply(planned: RoutingTable, replayed: RoutingTable, setting: Setting, options: Options) -> Outcome:  # noqa: ARG001
    """*planned* does not matter. Raise :exc:`ValueError` with fewer sequences than ranks of all micro-batches."""
    tokens, domain = setting.told_apart, setting.domain
    if tokens.size < setting.micro_batches * setting.ep:
        filled = f"{setting.micro_batches} micro-batches of {setting.ep} ranks"
        raise ValueError(f"{tokens.size} sequences do not fill {filled}")
    shares = setting.shares(replayed)
    order = np.argsort(_alike(shares)[domain], kind="stable") if options.together else np.arange(tokens.size)
    by_domain = np.eye(setting.domains)[domain[order]] * tokens[order, None]
    rounds = np.add.reduceat(by_domain, np.arange(0, tokens.size, setting.ep))
    on_ranks = shares.reshape(setting.domains, replayed.layers, setting.ep, -1).sum(axis=3)
    place = np.empty(tokens.size, np.int64)
    cuts = _cut(np.einsum("rd,dlp->rlp", rounds, on_ranks), setting.micro_batches)
    for number, (begin, end) in enumerate(cuts):
        part = order[begin * setting.ep : end * setting.ep]
        place[part] = number * setting.ep + lightest_bins(tokens[part][:, None], setting.ep)
    return composed(contiguous(replayed.layers, replayed.experts, setting.ep), replayed, setting, place)


def _alike(shares: FloatArray) -> FloatArray:
    """Where each domain stands along the first principal component of *shares* [domains, layers, experts]."""
    centred = shares.reshape(len(shares), -1)
    centred = centred - centred.mean(axis=0)
    # The Gram matrix is as small as the number of domains.
    _, vectors = np.linalg.eigh(centred @ centred.T)
    leading = vectors[:, -1]
    return np.asarray(leading * np.sign(leading[np.abs(leading).argmax()]))


def _cut(rank_rows: FloatArray, parts: int) -> list[tuple[int, int]]:
    """Cut *rank_rows* [rounds, layers, ranks] into *parts* runs, the heaviest as light as possible, heaviest first."""
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


def _fill(weight: Callable[[int, int], float], rounds: int, parts: int, limit: float) -> list[tuple[int, int]] | None:
    """Runs no heavier than *limit*, filled greedily, at least one round each; None when they do not suffice."""
    runs, begin = [], 0
    for part in range(parts):
        last = rounds - (parts - part - 1)
        low, high = begin, last
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if weight(begin, middle) <= limit else (low, middle - 1)
        if low == begin:
            return None
        runs.append((begin, low))
        begin = low
    return runs if begin == rounds else None
