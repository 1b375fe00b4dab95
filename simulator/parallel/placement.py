"""Placement: which domain of each fabric level a rank lies in, and what its groups put on the links.

Ranks fill nodes in order, as launchers do. Levels are numbered from the inside: level 0 is the scale-up domain (NVLink,
HCCS), level 1 what its NICs reach, and so on. The load of level d is what one accelerator's share of that level's ports
carries, in bytes per direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from simulator.parallel.folding import Folding
from simulator.parallel.mesh import Mesh

Loads = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """How the group of each behaviour lies on the fabric."""

    size: npt.NDArray[np.int64]
    """Members of the group, [behaviours]."""
    within: npt.NDArray[np.int64]
    """Members in the same domain as oneself, [levels, behaviours]; the outermost level holds all."""

    def port_loads(self, passed: Loads) -> Loads:
        """Bytes on ports, [levels, behaviours], where each member passes on *passed* bytes.

        The m members of a domain do so through as many ports, each with 1 / m of what leaves the domain. Levels that
        the group does not reach carry nothing.
        """
        loads = np.zeros(self.within.shape)
        inside = np.ones_like(self.size)
        for level, members in enumerate(self.within):
            loads[level] = np.where(members > inside, passed / inside, 0.0)
            inside = members
        return loads


def members_within(
    group: npt.NDArray[np.int64], domain_sizes: Sequence[int], first_rank: int = 0
) -> list[npt.NDArray[np.int64]]:
    """For each level, how many members of its group each rank has in its own domain, itself included.

    The ranks lie on the fabric from position *first_rank* on.
    """
    position = first_rank + np.arange(len(group))
    within = []
    for size in domain_sizes:
        cell = group * (int(position[-1]) // size + 1) + position // size
        _, inverse, counts = np.unique(cell, return_inverse=True, return_counts=True)
        within.append(counts[inverse.reshape(-1)])
    return within


@dataclass(frozen=True, slots=True)
class _Crossing:
    """What of an exchange among the ep ranks of a group crosses one level."""

    level: int
    behaviours: npt.NDArray[np.int64]
    """Those with ranks in the group."""
    places: npt.NDArray[np.int64]
    """Of each its ep rank."""
    pairs: npt.NDArray[np.bool_]
    """[ep, ep], whether this level is the innermost that holds both."""


class Placement:
    """The ranks of one pipeline stage on a fabric whose domains hold *domain_sizes* accelerators, innermost first."""

    def __init__(self, mesh: Mesh, folding: Folding, domain_sizes: Sequence[int], stage: int = 0) -> None:
        self.folding = folding
        self.domain_sizes = tuple(domain_sizes)
        self.first_rank = stage * mesh.stage_ranks
        self._groups = mesh.groups()
        self._expert_rank = mesh.expert_rank()
        self._spreads: dict[str, Spread] = {}

    def spread(self, axis: str) -> Spread:
        """How the groups along *axis* lie on the fabric; looked for once."""
        if axis not in self._spreads:
            group, own = self._groups[axis], self.folding.representative
            within = np.stack(members_within(group, self.domain_sizes, self.first_rank))[:, own]
            self._spreads[axis] = Spread(np.bincount(group)[group][own], within)
        return self._spreads[axis]

    def shuffle_loads(self, axis: str, held_bytes: float) -> Loads:
        """Bytes per level, [levels, behaviours], of an all-to-all that spreads *held_bytes* evenly over the group.

        Bytes between two ranks load the innermost level that holds both.
        """
        spread = self.spread(axis)
        inside = np.vstack([np.ones_like(spread.size), spread.within[:-1]])
        return np.asarray(held_bytes * (spread.within - inside) / spread.size, np.float64)

    def exchange_loads(self, sent_bytes: npt.NDArray[np.float64]) -> tuple[Loads, Loads]:
        """Bytes (out, in) per level, each [levels, behaviours], of an all-to-all among ep ranks.

        *sent_bytes* [ep, ep] is what each source sends to each destination. Bytes between two ranks load the innermost
        level that holds both; a rank's bytes to itself load none.
        """
        out, into = (np.zeros((len(self.domain_sizes), self.folding.behaviours)) for _ in range(2))
        for crossing in self._crossings:
            crossed = np.where(crossing.pairs, sent_bytes, 0.0)
            out[crossing.level, crossing.behaviours] = crossed.sum(axis=1)[crossing.places]
            into[crossing.level, crossing.behaviours] = crossed.sum(axis=0)[crossing.places]
        return out, into

    @cached_property
    def _crossings(self) -> list[_Crossing]:
        own, group, found = self.folding.representative, self._groups["ep"], []
        for number in np.unique(group[own]):
            members = np.flatnonzero(group == number)
            mine = np.flatnonzero(group[own] == number)
            places, nearer = self._expert_rank[own[mine]], np.eye(len(members), dtype=bool)
            for level, size in enumerate(self.domain_sizes):
                domain = np.empty(len(members), np.int64)
                domain[self._expert_rank[members]] = (self.first_rank + members) // size
                together = domain[:, None] == domain[None, :]
                pairs = together & ~nearer
                if pairs.any():
                    found.append(_Crossing(level, mine, places, pairs))
                nearer = nearer | together
        return found
