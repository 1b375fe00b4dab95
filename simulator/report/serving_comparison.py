"""Serving loops side by side, for the terminal: a row a variant.

Times to the first and of a further token, tokens of answers a second of an accelerator, USD of a million of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.units import human_bytes, human_time

if TYPE_CHECKING:
    from rich.table import Table

    Row = Mapping[str, Any]

_TITLES = ("", "first", "further", "tokens/s", "USD/1 M", "HBM", "limited by")


def serving_comparison(result: Mapping[str, Any]) -> Table:
    """What `rackcast compare` shows of *result*, the object of `compare --json`, where it is about serving."""
    from rich.table import Table

    rows = result["rows"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("scenario", no_wrap=True)
    for title in _TITLES:
        table.add_column(title, justify="left" if title == "limited by" else "right")
    for row in rows:
        table.add_row(named(row), row["verdict"], *_figures(row))
    return table


def named(row: Row) -> str:
    """A variant by what is changed, by its last words; or by its name."""
    changes = [text.rpartition(".")[2].replace("=", " ") for text in row["change"].split()]
    return ", ".join(changes) or str(row["name"])


def _figures(row: Row) -> list[str]:
    peak = human_bytes(row["memory"]["hbm"]["peak_bytes"])
    if "duration_s" not in row:
        return ["-", "-", "-", "-", peak, ""]
    usd = row["cost"]["usd_per_1m_output_tokens"]
    return [
        human_time(row["ttft_s"]["p50"]) if row["ttft_s"] else "-",
        human_time(row["tpot_s"]["p50"]) if row["tpot_s"] else "-",
        f"{row['output_tokens_per_s_per_accelerator']:,.0f}",
        "unknown" if usd is None else f"{usd:.3g}",
        peak,
        row["limited_by"],
    ]
