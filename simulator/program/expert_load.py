"""Expert load: what a routing table makes each rank compute and send.

Ranks are assumed to send the same mix (their data is alike), and every ep group to see the same table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulator.parallel.folding import Folding
from simulator.parallel.mesh import Mesh


@dataclass(frozen=True, slots=True)
class LayerLoad:
    """One MoE layer's load."""

    rows: npt.NDArray[np.int64]
    """Rows of each of its experts on each behaviour: [behaviours, experts on the rank]."""
    sent_rows: npt.NDArray[np.float64]
    """Rows from each ep rank (row) to each ep rank (column)."""

    @property
    def total_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each behaviour."""
        total: npt.NDArray[np.int64] = self.rows.sum(axis=1)
        return total

    def of_group(self, ranks: int) -> LayerLoad:
        """The load of *ranks* ranks that bring their rows together and split each expert among them (etp)."""
        return replace(self, rows=self.rows * ranks)

    @property
    def own_rows(self) -> float:
        """Rows that each rank's tokens make, wherever they go: as many come home."""
        return float(self.sent_rows[0].sum())


def layer_load(rows: npt.NDArray[np.int64], mesh: Mesh, folding: Folding) -> LayerLoad:
    """The load of one MoE layer whose experts receive *rows* [ep ranks, experts on the rank] from one ep group."""
    place = mesh.expert_rank()[folding.representative]
    sent = np.broadcast_to(rows.sum(axis=1) / mesh.ep, (mesh.ep, mesh.ep))
    return LayerLoad(rows[place], sent)
