"""What `rackcast calibrate` shows in the terminal: a row for each fitted kind, then where the files are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group


def calibration_table(found: Mapping[str, Any]) -> Group:
    """Of *found*, the object of `calibrate --json`."""
    from rich.console import Group
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("kind", "points", "median error", "worst"):
        table.add_column(title, justify="left" if title == "kind" else "right", no_wrap=True)
    for fit in found["fits"]:
        table.add_row(
            fit["kind"], str(fit["points"]), f"{fit['median_abs_error']:.1%}", f"{fit['worst_abs_error']:.1%}"
        )
    lines = [
        f"{found['gpus']} x {found['gpu']}: {found['accelerator']}, forms of {found['like']}, {found['wall_s']:.0f} s",
        f"In a scenario: cluster: {{node: {found['node']}}}",
        f"Report: {found['report']}",
    ]
    return Group(table, "", *lines)
