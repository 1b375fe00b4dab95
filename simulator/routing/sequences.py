"""Sequences of several domains, each of which routes in its own way around a table's popularity.

A domain's popularity is the table's, each expert's times a log-normal factor of its own. Between the six shipped
domains of OLMoE the log popularity of an expert has a standard deviation of 0.93; between four workloads of DeepSeek-V3
it is 0.32. Sequences of one domain are taken to route alike, though single ones differ, too.
"""

from __future__ import annotations

import numpy as np

from simulator.routing.table import FloatArray, RoutingTable

_FITTING_ROUNDS = 30


def domain_shares(table: RoutingTable, tokens: FloatArray, spread: float, rng: np.random.Generator) -> FloatArray:
    """The popularity of each domain, [domains, layers, experts], of which *tokens* [domains] are in the batch.

    Weighted with them they give *table*'s: what the factors shift is scaled back, expert by expert, in turns with each
    domain's sum (iterative proportional fitting).
    """
    share = table.popularity * np.exp(spread * rng.standard_normal((tokens.size, table.layers, table.experts)))
    weight = (tokens / tokens.sum())[:, None, None]
    for _ in range(_FITTING_ROUNDS):
        share *= table.popularity / np.maximum((share * weight).sum(axis=0), 1e-300)
        share /= share.sum(axis=2, keepdims=True)
    return np.asarray(share)
