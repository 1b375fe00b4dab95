"""Parameters that every rank holds whole: DDP, ZeRO-1 and ZeRO-2 have nothing to gather before use."""

from __future__ import annotations

from collections.abc import Iterable

from simulator.engine.task import Allocation
from simulator.program.rebuilt import Rebuilt
from simulator.program.unit import Unit


class WholeParameters:
    """Data parallelism that never shards parameters."""

    def gather(self, unit: Unit) -> None:
        """Nothing: parameters are whole."""

    def unshard(self, unit: Unit, *, keep_buffers: bool) -> None:
        """Nothing: parameters are whole."""

    def reshard(self, unit: Unit) -> None:
        """Nothing: parameters stay whole."""

    def finish_forward(self) -> None:
        """Nothing: parameters stay whole."""

    def rebuilt(self, _resident: Iterable[Allocation]) -> Rebuilt | None:
        """Nothing."""
        return None
