"""Sizes of cluster for the terminal: the cheapest that meets the goals first, then all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.campaign_table import days
from simulator.report.plan_table import split_label
from simulator.units import human_count

if TYPE_CHECKING:
    from rich.console import Group

_STYLES = {"meets": "", "not needed": "dim"}


def sizing_headline(result: Mapping[str, Any]) -> str:
    """The answer in one line."""
    best = result["winner"]
    tokens = human_count(result["tokens"])
    if best is None:
        return f"No size of cluster that was asked for trains on {tokens} tokens within the goals"
    usd = best["usd"]["p50"]
    cost = f", {human_count(usd)} USD" if usd is not None else ""
    return f"{cards(best)}: {tokens} tokens in {days(best['wall_s']['p50'])}{cost}"


def cards(one: Mapping[str, Any]) -> str:
    """Those in use, and those held ready."""
    spare = one["paid_accelerators"] - one["accelerators"]
    return f"{one['accelerators']:,} cards" + (f" and {spare} spare" if spare else "")


def sizing_table(result: Mapping[str, Any]) -> Group:
    """What `rackcast plan` shows of *result*, the object of `plan --json`, where it looked at sizes."""
    from rich import box
    from rich.console import Group
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("cards", "run", "p90", "USD", "goodput"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    table.add_column("split, or why not", overflow="fold")
    for one in result["sizes"]:
        best = result["winner"] is not None and one["accelerators"] == result["winner"]["accelerators"]
        style = "bold green" if best else _STYLES.get(one["verdict"], "red" if one["wall_s"] is None else "yellow")
        table.add_row(*_cells(one), style=style)
    return Group(f"[bold]{sizing_headline(result)}[/bold]", "", table)


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    used = f"{one['accelerators']:,}"
    if one["wall_s"] is None:
        return used, "-", "-", "-", "-", one["verdict"], one["reason"]
    usd = one["usd"]["p50"]
    return (
        used,
        days(one["wall_s"]["p50"]),
        days(one["wall_s"]["p90"]),
        "-" if usd is None else human_count(usd),
        f"{100 * one['goodput']:.1f} %",
        one["verdict"],
        split_label(one["split"]),
    )
