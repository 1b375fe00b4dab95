"""Sequences that each route in their own way, around a table's popularity.

A sequence's popularity is the table's, each expert's times a log-normal factor of its own. Between the six shipped
domains of OLMoE the log popularity of an expert has a standard deviation of 0.93, which is the default spread; between
four workloads of DeepSeek-V3 it is 0.32. Single sequences can differ more than domains do.
"""

from __future__ import annotations

import numpy as np

from simulator.routing.table import FloatArray, IntArray, RoutingTable

DOMAIN_SPREAD = 0.93
_MAX_ENTRIES = 150_000_000


def sequence_rows(
    table: RoutingTable, tokens: IntArray, top_k: int, spread: float, rng: np.random.Generator
) -> FloatArray:
    """Expected rows of each sequence, [sequences, layers, experts], of *tokens* tokens each.

    Their sum over sequences follows *table*: what the factors shift is scaled back, expert by expert. Raise
    :exc:`ValueError` when that is more than memory should hold.
    """
    entries = tokens.size * table.counts.size
    if entries > _MAX_ENTRIES:
        most = _MAX_ENTRIES // table.counts.size
        raise ValueError(f"{tokens.size} sequences are too many to tell apart, at most {most} with this table")
    factor = np.exp(spread * rng.standard_normal((tokens.size, table.layers, table.experts)))
    share = table.popularity * factor
    share /= share.sum(axis=2, keepdims=True)
    rows = share * (tokens * top_k)[:, None, None]
    wanted = table.popularity * (tokens.sum() * top_k)
    return np.asarray(rows * (wanted / np.maximum(rows.sum(axis=0), 1e-300)))
