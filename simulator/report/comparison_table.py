"""Forecasts side by side, for the terminal: a row a variant, the first one the measure of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.headline import time_label
from simulator.units import human_bytes, human_time

if TYPE_CHECKING:
    from rich.table import Table

    Row = Mapping[str, Any]


def comparison_table(result: Mapping[str, Any]) -> Table:
    """What `rackcast compare` shows of *result*, the object of `compare --json`."""
    from rich.table import Table

    rows = result["rows"]
    several = len({row["name"] for row in rows}) > 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    if several:
        table.add_column("scenario", overflow="fold")
    paths = [text.partition("=")[0] for text in rows[0]["change"].split()]
    for path in paths:
        table.add_column(path.rpartition(".")[0].rpartition(".")[2] + " " + path.rpartition(".")[2], overflow="fold")
    for title in ("", "step", "", "tokens/s each", "USD per 1 M tokens", "HBM peak", "busiest rank", "largest loss"):
        table.add_column(title, justify="left" if title == "largest loss" else "right")
    first = rows[0]["step_time_s"]["p50"]
    for row in rows:
        values = [text.partition("=")[2].rpartition("/")[2] for text in row["change"].split()]
        table.add_row(*([row["name"]] if several else []), *values, *_figures(row, first))
    return table


def _figures(row: Row, first_s: float) -> list[str]:
    step_s = row["step_time_s"]["p50"]
    return [
        row["verdict"],
        human_time(step_s),
        f"{step_s / first_s - 1:+.1%}",
        f"{row['tokens_per_s_per_accelerator']:,.0f}",
        _price(row["cost"]["usd_per_1m_tokens"]),
        human_bytes(row["memory"]["hbm"]["peak_bytes"]),
        f"{row['routing']['rank_max_over_mean']:.2f} x",
        _loss(row),
    ]


def _loss(row: Row) -> str:
    """The part that takes most of the step beside computation."""
    losses = {part: value for part, value in row["time"].items() if part != "compute_s"}
    part = max(losses, key=lambda name: losses[name])
    return f"{losses[part] / row['step_time_s']['p50']:.0%} {time_label(part)}"


def _price(usd: float | None) -> str:
    return "unknown" if usd is None else f"{usd:.3g}"
