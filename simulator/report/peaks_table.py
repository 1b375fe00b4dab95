"""Peaks of device memory by rank for the terminal: the highest ones and the lowest, when and with what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulator.units import human_bytes

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 3
"""Highest peaks that are shown, beside the lowest."""


def peaks_table(peaks: Sequence[Mapping[str, Any]]) -> Table:
    """*peaks* is `memory.hbm.peaks` of the summary, highest first."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("rank", no_wrap=True)
    table.add_column("peak", justify="right", no_wrap=True)
    table.add_column("first step", justify="right", no_wrap=True)
    table.add_column("when")
    table.add_column("most of it")
    for peak in telling_peaks(peaks):
        table.add_row(
            who(peak),
            human_bytes(peak["peak_bytes"]),
            human_bytes(peak["first_step_peak_bytes"]),
            when(peak),
            peak["owner"],
        )
    return table


def telling_peaks(peaks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The highest of *peaks*, and the lowest."""
    return [*peaks[:SHOWN], *peaks[SHOWN:][-1:]]


def who(peak: Mapping[str, Any]) -> str:
    """The rank, and how many are like it."""
    alike = f" ({peak['ranks']:,} alike)" if peak["ranks"] > 1 else ""
    return f"{peak['rank']:,}{alike}"


def when(peak: Mapping[str, Any]) -> str:
    """Phase, layer, micro-batch and task; "resident" where the step adds nothing."""
    layer = f"layer {peak['layer']}" if peak["layer"] is not None else ""
    micro_batch = f"micro-batch {peak['micro_batch']}" if peak["micro_batch"] is not None else ""
    return ", ".join(part for part in (peak["phase"], layer, micro_batch, peak["task"]) if part)
