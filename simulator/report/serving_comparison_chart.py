"""Serving loops against each other: tokens a second of an accelerator over the pace that a user sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.paper import FAINT, INK, SIZE_INCHES, titles
from simulator.report.serving_comparison import named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOUR = "#0072B2"


def serving_comparison_chart(result: Mapping[str, Any]) -> Figure:
    """The chart of *result*, the object of `compare --json`; variants without further tokens are left out."""
    from matplotlib.figure import Figure

    rows = [row for row in result["rows"] if row.get("tpot_s")]
    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    names = list(dict.fromkeys(row["name"] for row in result["rows"]))
    titles(figure, best(rows, result["rows"]), names[0] if len(names) == 1 else f"{len(names)} scenarios")
    axes = figure.add_axes((0.07, 0.08, 0.9, 0.8))
    paces = [1 / row["tpot_s"]["p50"] for row in rows]
    rates = [row["output_tokens_per_s_per_accelerator"] for row in rows]
    axes.scatter(paces, rates, s=60, color=_COLOUR, zorder=3)
    for pace, rate, row in zip(paces, rates, rows, strict=True):
        axes.annotate(named(row), (pace, rate), (6, 6), textcoords="offset points", fontsize=9.5, color=INK)
    axes.set_xlim(0, 1.15 * max(paces, default=1.0))
    axes.set_ylim(0, 1.12 * max(rates, default=1.0))
    axes.set_xlabel("tokens a second of one answer (median)", fontsize=10, color=INK)
    axes.set_title("tokens of answers a second, each accelerator", loc="left", fontsize=10.5, color=INK)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(color=FAINT, lw=0.3, alpha=0.5)
    axes.spines[["right", "top"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(labelsize=9.5, labelcolor=INK, color=FAINT)
    return figure


def best(rows: list[Mapping[str, Any]], asked: list[Mapping[str, Any]]) -> str:
    """What is best of *rows*, those of *asked* that have a pace."""
    if not rows:
        return "None of these makes further tokens" if any(row["fits"] for row in asked) else "None of these fits"
    best = max(rows, key=lambda row: row["output_tokens_per_s_per_accelerator"])
    return f"{named(best)}: {best['output_tokens_per_s_per_accelerator']:,.0f} tokens/s an accelerator"
