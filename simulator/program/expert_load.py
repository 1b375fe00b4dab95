"""Expert load: what a routing table makes each rank compute and send.

Ranks are assumed to send the same mix (their data is alike), though some may send more of it than others, and every ep
group to see the same table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulator.engine.task import Quantity
from simulator.parallel.folding import Folding
from simulator.parallel.mesh import Mesh
from simulator.program.exchanges import Way, exchanges, mixes_of
from simulator.routing.coverage import Choice

_ONE = Choice(1)


@dataclass(frozen=True, slots=True)
class LayerLoad:
    """One MoE layer's load."""

    rows: npt.NDArray[np.int64]
    """Rows of each of its experts on each behaviour: [behaviours, experts on the rank]."""
    sent_rows: npt.NDArray[np.float64]
    """Rows from each ep rank (row) to each ep rank (column)."""
    wire_rows: npt.NDArray[np.float64]
    """Those that the exchange carries: fewer where it sends a token once for several experts, more where it relays."""
    own_rows: Quantity
    """Rows that a rank's tokens make, wherever they go: as many come home."""
    way: Way = exchanges()["all_to_all"]
    """How they are sent."""

    @property
    def total_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each behaviour."""
        total: npt.NDArray[np.int64] = self.rows.sum(axis=1)
        return total

    def of_group(self, ranks: int) -> LayerLoad:
        """The load of *ranks* ranks that bring their rows together and split each expert among them (etp)."""
        return replace(self, rows=self.rows * ranks)

    def part(self, parts: int) -> LayerLoad:
        """One of so many *parts* of it, in whole rows of each expert."""
        sent, wire = self.sent_rows / parts, self.wire_rows / parts
        return replace(
            self, rows=-(-self.rows // parts), sent_rows=sent, wire_rows=wire, own_rows=self.own_rows / parts
        )


def layer_load(
    rows: npt.NDArray[np.int64],
    mesh: Mesh,
    folding: Folding,
    exchange: str = "all_to_all",
    choice: Choice = _ONE,
    domain: int = 1,
    source_share: npt.NDArray[np.float64] | None = None,
    destinations: npt.NDArray[np.int64] | None = None,
) -> LayerLoad:
    """The load of one MoE layer whose experts receive *rows* [ep ranks, experts on the rank] from one ep group.

    *exchange* names a file of `exchanges/`; a token's *choice* and accelerators of a scale-up *domain* say what it
    saves and where; *destinations* [tokens, top_k] are the ranks of recorded tokens' experts, where they are known.
    *source_share*: tokens that each rank brings over the mean, where that is not 1; each row then goes by itself.
    """
    place, way = mesh.expert_rank()[folding.representative], exchanges()[exchange]
    sent = _each_by_itself(rows, mesh)
    if source_share is not None:
        sent = sent * source_share[:, None]
        return LayerLoad(rows[place], sent, sent, sent.sum(axis=1)[place], way)
    on_wire = wire_rows(rows, mesh, exchange, choice, domain, destinations)
    return LayerLoad(rows[place], sent, on_wire, float(sent[0].sum()), way)


def wire_rows(
    rows: npt.NDArray[np.int64],
    mesh: Mesh,
    exchange: str,
    choice: Choice,
    domain: int,
    destinations: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.float64]:
    """Rows that *exchange* carries from each ep rank (row) to each ep rank (column), arguments as above."""
    if exchange == "all_to_all" or mesh.ep == 1:
        return _each_by_itself(rows, mesh)
    known = None if destinations is None else destinations[None]
    return exchanges()[exchange].sent(mixes_of(rows[None], choice, node_members(mesh, domain) or mesh.ep, known)[0])


def _each_by_itself(rows: npt.NDArray[np.int64], mesh: Mesh) -> npt.NDArray[np.float64]:
    return np.broadcast_to(rows.sum(axis=1) / mesh.ep, (mesh.ep, mesh.ep))


def node_members(mesh: Mesh, domain: int) -> int:
    """Ranks of an expert-parallel group that share a domain of *domain* accelerators; 0 where they lie unevenly."""
    group = mesh.ep * mesh.etp
    if domain % group == 0:
        return mesh.ep
    return domain // mesh.etp if group % domain == 0 and domain % mesh.etp == 0 else 0
