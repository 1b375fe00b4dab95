"""The bound that top-k routing sets on popularity.

A token picks k different experts, so no expert is chosen more than once per token: at most 1/k of the assignments. A
recording respects the bound of its own k; under another k, or drawn from a wide law, a table need not.
"""

from __future__ import annotations

import numpy as np

from simulator.routing.table import FloatArray


def cap_counts(counts: FloatArray, top_k: int) -> FloatArray:
    """*counts* [layers, experts] with no expert above 1/*top_k* of its layer's sum, which stays.

    What is cut off goes to the other experts in proportion, so the order of experts stays.
    Raise :exc:`ValueError` when a token cannot pick *top_k* different experts.
    """
    experts = counts.shape[1]
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k is {top_k}, but a token can pick 1 to {experts} different experts")
    limit = counts.sum(axis=1) / top_k
    capped = counts.copy()
    for layer in np.flatnonzero(counts.max(axis=1) > limit):
        capped[layer] = _cap_layer(counts[layer], float(limit[layer]))
    return capped


def _cap_layer(counts: FloatArray, limit: float) -> FloatArray:
    full = np.zeros(counts.size, dtype=bool)
    out = counts
    while (over := (out > limit) & ~full).any():
        full |= over
        rest = max(0.0, counts.sum() - limit * full.sum())
        spare = counts[~full].sum()
        # With all popularity on fewer than top_k experts, tokens must fill up with experts that were never recorded.
        others = counts * (rest / spare) if spare else np.full(counts.size, rest / max(1, (~full).sum()))
        out = np.where(full, limit, others)
    return out
