"""Forecasts beside measurements, for the terminal: one row a case, then medians and worst cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.units import human_bytes, human_time

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_TITLES = {
    "step_time_s": ("step", human_time),
    "tokens_per_s_per_accelerator": ("tokens/s each", lambda value: f"{value:,.0f}"),
    "peak_allocated_bytes": ("allocated", human_bytes),
    "peak_reserved_bytes": ("reserved", human_bytes),
    "first_step_peak_allocated_bytes": ("allocated, first step", human_bytes),
    "held_allocated_bytes": ("held between steps", human_bytes),
    "ttft_s": ("first token", human_time),
    "ttft_p50_s": ("first token, median", human_time),
    "tpot_s": ("further token", human_time),
    "latency_s": ("request", human_time),
    "output_tokens_per_s_per_accelerator": ("answers' tokens/s each", lambda value: f"{value:,.0f}"),
    "prompt_tokens_per_s_per_accelerator": ("prompts' tokens/s each", lambda value: f"{value:,.0f}"),
}
_LARGE = 0.10
"""Relative error from which a figure is coloured."""


def validation_table(result: Mapping[str, Any]) -> Group:
    """What `rackcast validate` shows of *result*, the object of `validate --json`."""
    from rich.console import Group

    return Group(_cases(result["cases"]), "", _errors(result))


def _cases(cases: list[Mapping[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("case", overflow="fold")
    for title in ("figure", "measured", "forecast", "error"):
        table.add_column(title, justify="left" if title == "figure" else "right", no_wrap=True)
    last = ""
    for case in cases:
        title, human = _TITLES[case["metric"]]
        style = "red" if abs(case["error"]) > _LARGE else ""
        error = Text(f"{case['error']:+.1%}", style=style)
        name = case["id"] if case["id"] != last else ""
        table.add_row(name, title, human(case["measured"]), human(case["predicted"]), error)
        last = case["id"]
    return table


def _errors(result: Mapping[str, Any]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("figure")
    for title in ("cases", "median error", "worst error"):
        table.add_column(title, justify="right")
    for metric, middle in result["median_abs_error"].items():
        count = sum(case["metric"] == metric for case in result["cases"])
        table.add_row(_TITLES[metric][0], str(count), f"{middle:.1%}", f"{result['worst_abs_error'][metric]:.1%}")
    return table
