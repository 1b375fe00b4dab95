"""What limits a serving loop: shares of the time of the accelerators that decode, or do all.

Products are bound by reading weights as long as they take no longer than reading those weights for one token does, at
the rate at which one token's products read them; what they take beyond is arithmetic. Attention of decoding sequences
is reading caches, as long as it takes by itself; what prompts beside them add is arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from simulator.forecast.serving.engine import Row
from simulator.forecast.serving.pool import Pool
from simulator.forecast.serving.pricing import FIGURES, IterationPrices, Load
from simulator.model.architecture import MixtureOfExperts
from simulator.program.serving.expert_rows import expert_rows

KINDS = {
    "weights": "reading weights",
    "cache": "reading caches",
    "arithmetic": "arithmetic",
    "exchange": "exchanges between accelerators",
    "small kernels": "small kernels",
    "launch": "the host's launches",
    "host": "what comes from host memory, drives or the host's cores",
    "idle": "too few requests",
}


def limits(pool: Pool, prices: IterationPrices, rows: Many[Row], span_ns: int) -> dict[str, float]:
    """Share of *span_ns* by kind of `KINDS`, of an engine that went through *rows*."""
    found = dict.fromkeys(KINDS, 0.0)
    reading = _Reading(pool, prices)
    for row in rows:
        for kind, share in _shares(row, reading).items():
            found[kind] += share * (row.end_ns - row.begin_ns) / 1e9
    span_s = span_ns / 1e9
    found["idle"] = max(0.0, span_s - sum(found.values()))
    return {kind: seconds / span_s for kind, seconds in found.items()}


class _Reading:
    """Seconds in which the weights of an iteration are read, and its caches."""

    def __init__(self, pool: Pool, prices: IterationPrices) -> None:
        one = dict(zip(FIGURES, prices.of(Load((), 1, 1.0)), strict=True))
        self._deployment, self._prices, self._dense_s = pool.deployment, prices, one["dense_s"]
        weights = pool.memory.weights
        dense = weights.get("weights", 0.0) + weights.get("absorbed weights", 0.0)
        self._experts_s = self._dense_s * weights.get("experts", 0.0) / dense if dense else 0.0
        parts = [layer.feed_forward for layer in pool.deployment.architecture.moe_layers()]
        self._top_k = parts[0].top_k if parts and isinstance(parts[0], MixtureOfExperts) else 0

    def cache_s(self, row: Row) -> float:
        """Of attention in an iteration of *row*, what its decoding sequences take by themselves."""
        attention_s = float(row.figures[FIGURES.index("attention_s")])
        if not row.prompt_tokens or not row.decoding:
            return 0.0 if row.prompt_tokens else attention_s
        alone = self._prices.of(Load((), round(row.decoding / row.ranks) or 1, row.contexts / row.ranks))
        return min(attention_s, float(alone[FIGURES.index("attention_s")]))

    def seconds(self, tokens: float) -> tuple[float, float]:
        """Of weights outside the experts and of the experts that *tokens* tokens of each rank choose."""
        deployment = self._deployment
        if deployment.popularity is None:
            return self._dense_s, 0.0
        of_group = tokens * deployment.expert_ranks / deployment.mesh.tp
        touched = expert_rows(deployment.popularity, of_group, self._top_k).touched.mean(axis=(0, 2)).max()
        return self._dense_s, self._experts_s * float(touched)


def _shares(row: Row, reading: _Reading) -> dict[str, float]:
    """Of one iteration of *row*."""
    parts = dict(zip(FIGURES, row.figures, strict=True))
    dense_s, experts_s = reading.seconds(max(1.0, (row.decoding + row.prompt_tokens) / row.ranks))
    weights = min(parts["dense_s"], dense_s) + min(parts["experts_s"], experts_s)
    products = parts["dense_s"] + parts["experts_s"]
    cache = reading.cache_s(row)
    found = {
        "weights": weights,
        "cache": cache,
        "arithmetic": products - weights + parts["attention_s"] - cache,
        "exchange": parts["exchange_s"] + parts["tensor_parallel_s"] + parts["pipeline_s"],
        "small kernels": parts["small_kernels_s"] + parts["head_s"],
        "launch": parts["launch_bound_s"],
        "host": parts["host_s"],
    }
    total = sum(found.values()) or 1.0
    return {kind: float(np.float64(seconds) / total) for kind, seconds in found.items()}
