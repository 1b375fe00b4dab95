"""How likely a token has an expert within a set: what a network that sends a token once to a rank or node has to carry.

Where single tokens were recorded, they are counted (`reach_of_tokens`).

A popularity does not say what single tokens choose together, so experts are taken as independent under the condition
that there are top_k of them (conditional Poisson sampling with the popularity's odds; Hajek, Sampling from a Finite
Population, 1981). For an even popularity that is choosing top_k without replacement, exactly. Tokens that like the same
neighbours reach fewer sets than this says.

Where a token first chooses its best groups of experts (DeepSeek-V3, section 2.1.2), a group is among them as often as
its popularity says, and the other groups chosen with it are like the mean of all others: for an even popularity that is
exact again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from simulator.routing.table import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Choice:
    """What a token chooses: *top_k* experts, all in *best* of *groups* equal groups of neighbours."""

    top_k: int
    groups: int = 1
    best: int = 1


def reach(popularity: FloatArray, choice: Choice) -> FloatArray:
    """The chance of each set that a token has at least one of its experts, [layers, sets]; *popularity* is
    [layers, sets, experts].

    Sets hold all experts in order, each once; where some lie across groups, tokens are taken to choose freely. Raise
    :exc:`ValueError` when there are fewer experts than are chosen.
    """
    layers, sets, of_set = popularity.shape
    experts = sets * of_set
    if choice.top_k > experts:
        raise ValueError(f"top_k is {choice.top_k}, but there are {experts} experts")
    members = experts // choice.groups
    if choice.best >= choice.groups:
        return _reach_freely(popularity, choice.top_k)
    if members % of_set == 0:
        return _reach_within_groups(popularity, choice, members)
    if of_set % members == 0:
        return np.full((layers, sets), _reach_of_groups(of_set // members, choice, members))
    return _reach_freely(popularity, choice.top_k)


def reach_of_tokens(destinations: IntArray, sets: int) -> FloatArray:
    """The share of tokens that have an expert in each of so many *sets*, [sets]; *destinations* [tokens, top_k] name
    the set of each expert of a token, -1 for none.
    """
    found = np.zeros((len(destinations), sets + 1), dtype=bool)
    np.put_along_axis(found, destinations, True, axis=1)
    tokens = found[:, :sets].any(axis=1).sum()
    return np.asarray(found[:, :sets].sum(axis=0) / tokens)


def _reach_within_groups(popularity: FloatArray, choice: Choice, members: int) -> FloatArray:
    """Of sets that are parts of groups of so many *members*."""
    layers, _, of_set = popularity.shape
    grouped = popularity.reshape(layers, choice.groups, members)
    liked = np.minimum(choice.best * grouped.sum(axis=2) / grouped.sum(axis=(1, 2))[:, None], 1.0)
    chosen = np.concatenate([_beside_others(grouped, number, choice.best) for number in range(choice.groups)])
    reached = _reach_freely(chosen.reshape(len(chosen), -1, of_set), choice.top_k)
    own = reached[:, : members // of_set].reshape(choice.groups, layers, -1).swapaxes(0, 1)
    return np.asarray((liked[:, :, None] * own).reshape(layers, -1))


def _beside_others(grouped: FloatArray, number: int, best: int) -> FloatArray:
    """The experts of a group and of *best* - 1 like the mean of all others, [layers, best * members]."""
    others = np.sort(np.delete(grouped, number, axis=1), axis=2).mean(axis=1)
    return np.concatenate([grouped[:, number], *[others] * (best - 1)], axis=1)


def _reach_of_groups(held: int, choice: Choice, members: int) -> float:
    """Of a set of *held* whole groups of so many *members*, all of which are taken to be liked alike."""
    missed = 0.0
    for chosen in range(max(0, choice.best - choice.groups + held), min(held, choice.best) + 1):
        ways = comb(held, chosen) * comb(choice.groups - held, choice.best - chosen) / comb(choice.groups, choice.best)
        outside = comb((choice.best - chosen) * members, choice.top_k)
        missed += ways * outside / comb(choice.best * members, choice.top_k)
    return 1.0 - missed


def _reach_freely(popularity: FloatArray, top_k: int) -> FloatArray:
    chance = np.minimum(popularity * (top_k / popularity.sum(axis=(1, 2)))[:, None, None], 1.0)
    inside = np.zeros((*chance.shape[:2], top_k + 1))
    inside[..., 0] = 1.0
    for picked in np.moveaxis(chance, 2, 0)[..., None]:
        # Picked numbers of experts of a set: one expert more moves them up by one with its chance.
        moved = inside[..., :-1] * picked
        inside *= 1.0 - picked
        inside[..., 1:] += moved
    before, behind = np.split(_running(np.concatenate([inside, inside[:, ::-1]])), 2)
    behind = behind[:, ::-1]
    without = (before[:, :-1] * behind[:, 1:, ::-1]).sum(axis=2)
    everything = (before[:, -2] * inside[:, -1, ::-1]).sum(axis=1)
    return np.asarray(1.0 - inside[..., 0] * without / everything[:, None])


def _running(inside: FloatArray) -> FloatArray:
    """Numbers picked of the first 0, 1, 2... sets, [layers, sets + 1, top_k + 1]."""
    layers, sets, numbers = inside.shape
    total = np.zeros((layers, sets + 1, numbers))
    total[:, 0, 0] = 1.0
    for number in range(sets):
        for picked in range(numbers):
            of_one = inside[:, number, picked, None]
            total[:, number + 1, picked:] += of_one * total[:, number, : numbers - picked]
    return total
