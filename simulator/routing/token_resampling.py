"""Recorded tokens carried to a layer with another popularity, expert count and top-k: who goes with whom is kept.

Experts correspond by their place in the order of popularity; with more of them, a recorded expert becomes a group of
neighbours in that order, and each token takes one of the group. A token that needs more experts than it had takes over
those of a recorded token that shares an expert with it, then what popularity gives. The target's popularity is met as
far as it has the recorded one's distribution, which resampled and imitated tables have.
"""

from __future__ import annotations

import numpy as np

from simulator.routing.table import FloatArray, IntArray


def resample_tokens(
    picks: IntArray, popularity: FloatArray, experts: int, tokens: int, top_k: int, rng: np.random.Generator
) -> IntArray:
    """*tokens* tokens [tokens, top_k] for experts of *popularity*, from recorded *picks* [recorded, any] of *experts*
    experts, -1 for none. Raise :exc:`ValueError` when *top_k* exceeds the target's experts.
    """
    if top_k > popularity.size:
        raise ValueError(f"top_k is {top_k}, but a token can pick 1 to {popularity.size} different experts")
    chosen = rng.integers(0, len(picks), tokens)
    own = rng.permuted(picks[chosen], axis=1)
    others = picks[_alike(picks, rng)[chosen]]
    candidates = _carried(np.concatenate([own, others], axis=1), picks, popularity, experts, rng)
    # The largest of log weight plus Gumbel noise is a draw by weight; candidates come before it, the token's own first.
    key = np.empty((tokens, popularity.size + 1))
    key[:, :-1] = np.log(np.maximum(popularity, 1e-300)) + rng.gumbel(size=(tokens, popularity.size))
    for column in reversed(range(candidates.shape[1])):
        np.put_along_axis(key, candidates[:, [column]], 1e9 - column, axis=1)
    return np.asarray(np.argsort(-key[:, :-1], axis=1, kind="stable")[:, :top_k])


def _alike(picks: IntArray, rng: np.random.Generator) -> IntArray:
    """For each token another one that shares an expert with it, as far as there is one, [recorded]."""
    shared = rng.permuted(picks, axis=1).max(axis=1) if picks.shape[1] == 1 else picks[:, rng.integers(picks.shape[1])]
    order = np.argsort(shared + rng.random(len(picks)), kind="stable")
    partner = np.empty(len(picks), dtype=np.int64)
    partner[order] = np.roll(order, 1)
    return partner


def _carried(
    old: IntArray, picks: IntArray, popularity: FloatArray, experts: int, rng: np.random.Generator
) -> IntArray:
    """Target experts that stand for the experts *old*; one beyond the last where there is none."""
    counts = np.bincount(picks[picks >= 0], minlength=experts)
    place = np.empty(experts, dtype=np.int64)
    place[np.argsort(counts, kind="stable")] = np.arange(experts)
    by_popularity = np.argsort(popularity, kind="stable")
    at = (place[old] + rng.random(old.shape)) * popularity.size / experts
    target = by_popularity[np.minimum(at.astype(np.int64), popularity.size - 1)]
    return np.asarray(np.where(old >= 0, target, popularity.size))
