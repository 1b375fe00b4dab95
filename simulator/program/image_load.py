"""Image load: how many images each rank encodes in a micro-batch.

All images are of one size. Every tp and cp rank of a group encodes all images of the sequences that they share. Where
one rank has an image, those without encode the smallest there is: the gathers of a sharded tower need every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.model.architecture import VisionTower
from simulator.parallel.folding import Folding
from simulator.parallel.mesh import Mesh

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ImageLoad:
    """Images of *patches* patches; *counts* of them for each data-parallel rank."""

    patches: int
    counts: Counts

    def of_ranks(self, mesh: Mesh) -> Counts:
        """Images of each rank of a stage."""
        return np.asarray(self.counts[mesh.data_rank()])

    def of_behaviours(self, mesh: Mesh, folding: Folding) -> Counts:
        """Images of each behaviour."""
        return np.asarray(self.of_ranks(mesh)[folding.representative])

    def image_patches(self, tower: VisionTower, images: int) -> tuple[int, ...]:
        """Patches of each image of a rank with so many *images*."""
        return (self.patches,) * images or (tower.merge**2,)


def dealt(counts: Counts, ranks: int) -> Counts:
    """Images of each of *ranks* ranks whose sequences, in order, hold *counts* images."""
    return np.asarray(counts.reshape(ranks, -1).sum(axis=1))


def evened(counts: Counts) -> Counts:
    """As many images spread over the ranks as evenly as they divide, the first ranks one more."""
    each, more = divmod(int(counts.sum()), len(counts))
    return np.asarray(each + (np.arange(len(counts)) < more), np.int64)
