"""What a report is made from, whichever forecast produced it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from simulator.forecast.timeline import MemoryCurve, Timeline


class Source(Protocol):
    """A forecast, as far as a report looks at it."""

    @property
    def summary(self) -> dict[str, Any]:
        """The object that `run --json` prints."""

    @property
    def timeline(self) -> Timeline:
        """Tasks of the telling ranks."""

    @property
    def memory(self) -> tuple[MemoryCurve, ...]:
        """Memory of the telling ranks, per tier."""
