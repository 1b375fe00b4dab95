"""Folding: ranks that do exactly the same are simulated once.

Two ranks are one *behaviour* when they start alike (same load, same place in their node) and when their groups along
every axis look alike, member by member. That is the coarsest equitable partition, found by colour refinement
(Berkholz, Bonsma and Grohe, 2017): colour ranks by what distinguishes them, then by the colours in their groups, until
nothing changes. In such a partition a barrier over folded groups takes exactly as long as over the real ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RankVector = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Folding:
    """Behaviours and the groups among them."""

    behaviour: RankVector
    """Behaviour of each rank."""
    representative: RankVector
    """The lowest rank of each behaviour."""
    ranks: RankVector
    """How many ranks each behaviour stands for."""
    groups: dict[str, RankVector]
    """Folded group number of each behaviour, by axis."""

    @property
    def behaviours(self) -> int:
        """How many distinct behaviours there are."""
        return len(self.representative)


def fold(distinguishing: npt.NDArray[np.int64], groups: dict[str, RankVector]) -> Folding:
    """Fold ranks. *distinguishing* is [ranks, features]; *groups* holds each rank's group number by axis."""
    colour = _number_rows(distinguishing)
    while True:
        columns = [colour, *(_group_signature(colour, group)[group] for group in groups.values())]
        finer = _number_rows(np.stack(columns, axis=1))
        if finer.max(initial=0) == colour.max(initial=0):
            break
        colour = finer
    behaviour = _by_first_appearance(colour)
    count = int(behaviour.max(initial=-1)) + 1
    representative = np.full(count, len(behaviour), np.int64)
    np.minimum.at(representative, behaviour, np.arange(len(behaviour)))
    folded = {axis: _group_signature(behaviour, group)[group][representative] for axis, group in groups.items()}
    return Folding(behaviour, representative, np.bincount(behaviour, minlength=count).astype(np.int64), folded)


def apart(groups: dict[str, RankVector], ranks: int) -> Folding:
    """Every rank a behaviour of its own."""
    return Folding(np.arange(ranks), np.arange(ranks), np.ones(ranks, np.int64), dict(groups))


def _group_signature(colour: RankVector, group: RankVector) -> RankVector:
    """For each group, a number that is equal for groups with the same colours equally often."""
    pairs, counts = np.unique(np.stack([group, colour], axis=1), axis=0, return_counts=True)
    rows: dict[int, list[tuple[int, int]]] = {}
    for (number, shade), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        rows.setdefault(number, []).append((shade, count))
    known: dict[tuple[tuple[int, int], ...], int] = {}
    signature = np.zeros(int(group.max(initial=0)) + 1, np.int64)
    for number in sorted(rows):
        signature[number] = known.setdefault(tuple(rows[number]), len(known))
    return signature


def _number_rows(rows: npt.NDArray[np.int64]) -> RankVector:
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _by_first_appearance(colour: RankVector) -> RankVector:
    """Renumber colours in the order in which ranks show them."""
    _, first, inverse = np.unique(colour, return_index=True, return_inverse=True)
    order = np.empty(len(first), np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    result: RankVector = order[inverse.reshape(-1)]
    return result
