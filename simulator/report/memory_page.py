"""What a page says of each memory tier: its parts, what makes its peak, the ranks that hold most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.report.memory_chart import kind_colours
from simulator.report.memory_plot import breakdown_plot
from simulator.report.peaks_table import telling_peaks, when, who
from simulator.report.plots import Plot


@dataclass(frozen=True, slots=True)
class MemoryOfTier:
    """A tier that holds something."""

    tier: str
    of: str
    """Whose: empty, or the accelerators that it is of."""
    held: Mapping[str, Any]
    """Its entry of `memory` in the summary."""
    plot: Plot
    colours: Mapping[str, str]
    """Of the kinds in it."""
    makers: tuple[tuple[str, Mapping[str, Any]], ...]
    """Words for the largest tensors at the peak, and their entries of `made_of`."""
    peaks: tuple[tuple[str, str, Mapping[str, Any]], ...]
    """Of ranks: who, when, and their entries of `peaks`."""

    @property
    def most_bytes(self) -> float:
        """That it holds at any time, before steps are alike too."""
        return float(max(self.held["peak_bytes"], self.held.get("settling_peak_bytes", 0.0)))


def tiers(memory: Mapping[str, Any], of: str = "") -> list[MemoryOfTier]:
    """The tiers of *memory*, a part of the summary, that hold anything; *of* says whose they are."""
    return [
        MemoryOfTier(
            tier,
            of,
            held,
            breakdown_plot(f"memory-{tier}{'-prefill' if of else ''}", tier, held, of=of),
            kind_colours(kind for kind, size in held["breakdown"].items() if size > 0),
            tuple((_maker(one), one) for one in held.get("made_of", ())),
            tuple((who(one), when(one), one) for one in telling_peaks(held.get("peaks", ()))),
        )
        for tier, held in memory.items()
        if held["peak_bytes"]
    ]


def _maker(one: Mapping[str, Any]) -> str:
    """The task whose tensors they are, in which phase and layers; those that are always there have none."""
    if one["phase"] == "resident":
        return "always there"
    first, last = one["first_layer"], one["last_layer"]
    layers = "" if first is None else f", layer {first}" if first == last else f", layers {first} to {last}"
    return f"{one['phase']}: {one['task']}{layers}"
