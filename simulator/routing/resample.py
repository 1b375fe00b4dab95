"""Carrying a recorded table to a model with another number of layers and experts, its skew kept.

Kept: each layer's popularity law as a quantile function, the spread between layers, and how popularity varies along the
expert index. Recordings of DeepSeek-V3 show a trend along the index under independent differences between neighbours:
shuffling experts within blocks of eight leaves rank loads as they were (EP8 to EP128 within 3 %), shuffling all of them
halves the excess. So the blocks stay and neighbours are drawn afresh.

Accuracy on those recordings: the same shape comes back exactly. 256 experts rebuilt from every second one have rank
loads (max / mean) at EP8 to EP128 within 7 %, from every fourth one within 16 %, mostly low, and a hottest expert 8-14
and 19-27 % low, because popularity beyond the hottest recorded expert is never made up. With more experts, more of them
on a rank average out and more ranks have a worse worst one: from 256 to 896 the law stays within 0.5 %, rank loads at
equal EP change by -3..0 % (EP8 to EP32), -13..-8 % (EP64) and -26..-18 % (EP128), at equal experts per rank by
+13..+37 %. From OLMoE's 64 experts to 896 the two lie far apart: -67..-49 % at EP64, 0..+1 % at one expert a rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simulator.routing.cap import cap_counts
from simulator.routing.table import FloatArray, IntArray, RoutingTable

BLOCK_EXPERTS = 8
"""Experts of a block along the index, in whichever of source and target has fewer."""


def resample(table: RoutingTable, layers: int, experts: int, top_k: int, rng: np.random.Generator) -> RoutingTable:
    """*table* carried to *layers* MoE layers of *experts* experts, no expert above 1/*top_k* of a layer's assignments.

    A target layer follows the source layer at the same relative depth. With the expert count unchanged, the first layer
    that follows a source layer keeps its experts in place; every other gets its neighbours from *rng*. An expert that
    was never chosen counts as half of the rarest one that was. Raise :exc:`ValueError` when *top_k* exceeds *experts*.
    """
    if (layers, experts) == (table.layers, table.experts):
        return replace(table, counts=cap_counts(table.counts, top_k), picks=_same_picks(table, top_k))
    followed = layers_followed(table, layers)
    plan = _plan(table, experts)
    rows = []
    for layer, source in enumerate(followed):
        in_place = experts == table.experts and source not in followed[:layer]
        rows.append(table.counts[source] if in_place else _arrange(table.counts[source], plan, rng))
    note = f"resampled from {table.layers} layers of {table.experts} experts to {layers} of {experts}"
    return RoutingTable(
        cap_counts(np.array(rows), top_k),
        name=table.name,
        source=f"{table.source}; {note}" if table.source else note,
        recorded_layers=tuple(table.recorded_layers[source] for source in followed) if table.recorded_layers else (),
    )


def layers_followed(table: RoutingTable, layers: int) -> IntArray:
    """Which layer of *table* each of *layers* layers follows: the one at the same relative depth."""
    return np.asarray((2 * np.arange(layers) + 1) * table.layers // (2 * layers))


def _same_picks(table: RoutingTable, top_k: int) -> IntArray | None:
    """The recorded tokens of *table*, where they choose as many experts."""
    return table.picks if table.picks is not None and table.picks.shape[2] == top_k else None


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which source experts stand for which target experts."""

    source_edges: IntArray
    target_edges: IntArray
    block_scale: float
    """Factor on the blocks' mean log popularity: larger blocks differ less from each other by chance."""


def _plan(table: RoutingTable, experts: int) -> _Plan:
    blocks = max(1, min(table.experts, experts) // BLOCK_EXPERTS)
    source_edges = np.arange(blocks + 1) * table.experts // blocks
    target_edges = np.arange(blocks + 1) * experts // blocks
    scale = 1.0
    if blocks > 1:
        old, new = table.experts / blocks, experts / blocks
        between, within = _variances(table, source_edges)
        true_between = max(0.0, between - within / old)
        scale = float(np.sqrt((true_between + within / new) / between)) if between else 1.0
    return _Plan(source_edges, target_edges, scale)


def _variances(table: RoutingTable, edges: IntArray) -> tuple[float, float]:
    """Of log popularity: the variance of block means, and that of experts within a block, both pooled over layers."""
    logs = np.array([log_popularity(row) for row in table.counts])
    size = np.diff(edges)
    means = np.add.reduceat(logs, edges[:-1], axis=1) / size
    within = np.square(logs - np.repeat(means, size, axis=1)).sum() / (table.layers * (table.experts - size.size))
    return float(means.var(axis=1, ddof=1).mean()), float(within)


def _arrange(counts: FloatArray, plan: _Plan, rng: np.random.Generator) -> FloatArray:
    """A target layer: every expert gets a score by its block and by chance, and by its score's rank a popularity of the
    source layer's law.
    """
    logs = log_popularity(counts)
    scores = []
    for block, size in enumerate(np.diff(plan.target_edges)):
        own = logs[plan.source_edges[block] : plan.source_edges[block + 1]]
        drawn = rng.permutation(quantiles(own, int(size)))
        scores.append(drawn - drawn.mean() + plan.block_scale * (own.mean() - logs.mean()))
    rank = np.argsort(np.argsort(np.concatenate(scores), kind="stable"), kind="stable")
    law = np.exp(quantiles(logs, rank.size))
    return np.asarray(law[rank] * (counts.sum() / law.sum()))


def log_popularity(counts: FloatArray) -> FloatArray:
    """Log of one layer's *counts*; an expert never chosen counts as half of the rarest one that was."""
    return np.asarray(np.log(np.maximum(counts, counts[counts > 0].min() / 2)))


def quantiles(values: FloatArray, number: int) -> FloatArray:
    """*number* evenly spaced quantiles of *values*, ascending, linear between them and never beyond the extremes."""
    at = (np.arange(number) + 0.5) / number
    known = (np.arange(values.size) + 0.5) / values.size
    return np.asarray(np.interp(at, known, np.sort(values)))
