"""Forecasts side by side, for the terminal: a column a variant, the first one the measure of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.headline import time_label
from simulator.units import human_bytes, human_time

if TYPE_CHECKING:
    from rich.table import Table

_LEAST_S = 0.005
"""Share of the longest step below which a part of the time is not shown."""


def comparison_table(result: Mapping[str, Any]) -> Table:
    """What `rackcast compare` shows of *result*, the object of `compare --json`."""
    from rich.table import Table

    rows = result["rows"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    paths = " ".join(text.partition("=")[0] for text in rows[0]["change"].split())
    table.add_column(paths, style="dim", no_wrap=True)
    for row in rows:
        values = " ".join(text.partition("=")[2] for text in row["change"].split())
        name = row["name"] if len({other["name"] for other in rows}) > 1 else ""
        table.add_column(" ".join(filter(None, (name, values))) or row["name"], justify="right", overflow="fold")
    first = rows[0]["step_time_s"]["p50"]
    table.add_row("verdict", *(row["verdict"] for row in rows))
    table.add_row("step", *(human_time(row["step_time_s"]["p50"]) for row in rows))
    table.add_row("against the first", *(f"{row['step_time_s']['p50'] / first - 1:+.1%}" for row in rows))
    table.add_row("tokens/s each", *(f"{row['tokens_per_s_per_accelerator']:,.0f}" for row in rows))
    table.add_row("MFU", *(f"{row['model_flops_utilization']:.1%}" for row in rows))
    table.add_row("USD per 1 M tokens", *(_price(row["cost"]["usd_per_1m_tokens"]) for row in rows))
    table.add_row("HBM peak", *(human_bytes(row["memory"]["hbm"]["peak_bytes"]) for row in rows))
    table.add_row("busiest rank", *(f"{row['routing']['rank_max_over_mean']:.2f} x mean" for row in rows))
    table.add_section()
    longest = max(row["step_time_s"]["p50"] for row in rows)
    for part in rows[0]["time"]:
        if max(row["time"][part] for row in rows) > _LEAST_S * longest:
            table.add_row(time_label(part), *(human_time(row["time"][part]) for row in rows))
    return table


def _price(usd: float | None) -> str:
    return "unknown" if usd is None else f"{usd:.3g}"
