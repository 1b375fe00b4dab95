"""Single tokens' choices that follow a popularity exactly in the mean: systematic sampling with unequal probabilities.

Each token lays the experts out in an order of its own, each as long as its chance to be picked, and picks those that
top_k equally spaced marks hit. So a token's picks differ, and an expert is picked by exactly its share of the tokens in
expectation. Experts are as good as independent of each other: what real tokens choose together is not in a popularity.
"""

from __future__ import annotations

import numpy as np

from simulator.routing.cap import cap_counts
from simulator.routing.table import FloatArray, IntArray

_CHUNK_ENTRIES = 4_000_000


def draw_tokens(popularity: FloatArray, tokens: int, top_k: int, rng: np.random.Generator) -> IntArray:
    """The experts of *tokens* tokens, [tokens, top_k], each row *top_k* different ones.

    *popularity* [experts] need not sum to 1; none counts for more than 1/*top_k* of the sum. Raise :exc:`ValueError`
    when *top_k* exceeds the experts.
    """
    capped = cap_counts(popularity[None, :].astype(np.float64), top_k)[0]
    chance = capped * (top_k / capped.sum())
    rows = max(1, _CHUNK_ENTRIES // popularity.size)
    parts = [_draw(chance, min(rows, tokens - at), top_k, rng) for at in range(0, tokens, rows)]
    return np.concatenate(parts) if parts else np.empty((0, top_k), dtype=np.int64)


def _draw(chance: FloatArray, tokens: int, top_k: int, rng: np.random.Generator) -> IntArray:
    order = rng.permuted(np.broadcast_to(np.arange(chance.size), (tokens, chance.size)), axis=1)
    ends = np.cumsum(chance[order], axis=1)
    ends *= top_k / ends[:, -1:]
    while True:
        marks_passed = np.floor(ends - rng.random((tokens, 1)))
        hit = np.diff(marks_passed, axis=1, prepend=-1) > 0
        # An expert of chance 1 can be rounded to hold two marks or none; that has odds of 1 in 10^15.
        if (hit.sum(axis=1) == top_k).all():
            return np.asarray(order[hit].reshape(tokens, top_k))
