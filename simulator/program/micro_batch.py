"""A micro-batch as ranks bring it: their sequences, where rows go, their images.

A step goes through its unlike micro-batches in turn. Ranks of every expert-parallel group bring the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.parallel.mesh import Mesh
from simulator.program.image_load import ImageLoad
from simulator.routing.outcome import Lengths

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One of the unlike micro-batches of a step."""

    rows: Numbers | None = None
    """Rows of every expert slot, [layers, ep, slots]; None without experts."""
    destinations: Numbers | None = None
    """Rank of each expert of recorded tokens, [layers, tokens, top_k], -1 for none; None where they are not known."""
    lengths: Lengths = ()
    """Tokens of the sequences of each ep rank; empty where all have the workload's."""
    images: ImageLoad | None = None
    """None for text alone."""

    @property
    def distinct(self) -> Lengths:
        """The different sets of sequences that ranks have, the one with most tokens last."""
        return tuple(sorted(set(self.lengths), key=lambda one: (sum(one), one)))

    @property
    def source_share(self) -> npt.NDArray[np.float64] | None:
        """Tokens of each ep rank over the mean, [ep]; None where all have as many."""
        tokens = np.array([sum(one) for one in self.lengths], np.float64)
        return tokens / tokens.mean() if len(set(tokens.tolist())) > 1 else None

    def features(self, mesh: Mesh) -> Iterator[Numbers]:
        """What tells the ranks of a stage apart, [ranks] each."""
        if self.lengths:
            known = self.distinct
            yield np.array([known.index(one) for one in self.lengths])[mesh.expert_rank()]
        if self.images is not None:
            yield self.images.of_ranks(mesh)
