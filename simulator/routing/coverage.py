"""How likely a token has an expert within a set: what a network that sends a token once to a rank or node has to carry.

A popularity does not say what single tokens choose together, so experts are taken as independent under the condition
that there are top_k of them (conditional Poisson sampling with the popularity's odds; Hajek, Sampling from a Finite
Population, 1981). For an even popularity that is choosing top_k without replacement, exactly. Tokens that like the same
neighbours reach fewer sets than this says.
"""

from __future__ import annotations

import numpy as np

from simulator.routing.table import FloatArray


def reach(popularity: FloatArray, top_k: int) -> FloatArray:
    """The chance of each set, [sets], that a token has at least one of its experts; *popularity* is [sets, experts].

    Sets hold all experts, each once. Raise :exc:`ValueError` when *top_k* exceeds the experts.
    """
    if top_k > popularity.size:
        raise ValueError(f"top_k is {top_k}, but there are {popularity.size} experts")
    chance = np.minimum(popularity * (top_k / popularity.sum()), 1.0)
    inside = np.zeros((len(chance), top_k + 1))
    inside[:, 0] = 1.0
    for picked in chance.T[:, :, None]:
        # Picked numbers of experts of a set: one expert more moves them up by one with its chance.
        moved = np.concatenate([np.zeros((len(inside), 1)), inside[:, :-1]], axis=1)
        inside = inside * (1.0 - picked) + moved * picked
    before = _running(inside)
    behind = _running(inside[::-1])[::-1]
    without = np.array([np.convolve(a, b)[top_k] for a, b in zip(before[:-1], behind[1:], strict=True)])
    everything = np.convolve(before[-2], inside[-1])[top_k]
    return np.asarray(1.0 - inside[:, 0] * without / everything)


def _running(inside: FloatArray) -> FloatArray:
    """Numbers picked of the first 0, 1, 2... sets, [sets + 1, top_k + 1]."""
    total = np.zeros((len(inside) + 1, inside.shape[1]))
    total[0, 0] = 1.0
    for number, one in enumerate(inside):
        total[number + 1] = np.convolve(total[number], one)[: inside.shape[1]]
    return total
