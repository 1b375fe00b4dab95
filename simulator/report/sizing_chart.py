"""Days and money of the whole run against the size of the cluster, with the deadline that decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.paper import FAINT, INK, SIZE_INCHES, legend, titles
from simulator.report.plan_table import split_label
from simulator.report.sizing_table import cards, sizing_headline
from simulator.units import DAY_S, human_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"cheapest that meets the goals": "#009E73", "meets the goals": "#9BCDBE", "misses them": "#D55E00"}


def sizing_chart(result: Mapping[str, Any]) -> Figure:
    """Draw *result*, the object of `plan --json` where it looked at sizes, of which one at least was planned."""
    from matplotlib.figure import Figure

    planned = [one for one in result["sizes"] if one["wall_s"] is not None]
    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    best = result["winner"]
    titles(figure, sizing_headline(result), "")
    told = f"{result['scenario']}. " + (f"Split: {split_label(best['split'])}" if best else "Nothing meets the goals")
    figure.text(0.015, 0.88, told, fontsize=11, color=FAINT, va="center")
    axes = figure.add_axes((0.065, 0.09, 0.9, 0.74))
    for position, one in enumerate(planned):
        wall = {key: s / DAY_S for key, s in one["wall_s"].items()}
        axes.bar(position, wall["p50"], width=0.55, color=_COLOURS[_kind(one, best)], zorder=2)
        axes.errorbar(
            position, wall["p50"], [[wall["p50"] - wall["p10"]], [wall["p90"] - wall["p50"]]], color=INK, capsize=5,
            zorder=3,
        )  # fmt: skip
        axes.annotate(
            _label(one), (position, wall["p90"]), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=10,
            color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}, zorder=4,
        )  # fmt: skip
    kinds = {_kind(one, best) for one in planned}
    legend(figure, [(colour, kind) for kind, colour in _COLOURS.items() if kind in kinds])
    longest_s = max(one["wall_s"]["p90"] for one in planned)
    if result["within_s"] is not None and result["within_s"] < 1.1 * longest_s:
        axes.axhline(result["within_s"] / DAY_S, color=INK, lw=1.2, ls="--", zorder=1)
        axes.annotate(
            f"deadline, {result['within_s'] / DAY_S:.3g} days", (len(planned) - 0.5, result["within_s"] / DAY_S),
            xytext=(0, 4), textcoords="offset points", ha="right", fontsize=10, color=INK,
        )  # fmt: skip
    axes.set_xticks(range(len(planned)), [cards(one) for one in planned])
    axes.set_xlim(-0.5, len(planned) - 0.5)
    axes.set_ylim(0, 1.15 * longest_s / DAY_S)
    axes.set_ylabel("days for the whole run; line from p10 to p90", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _kind(one: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    """What the colour of a size says."""
    if one["verdict"] != "meets":
        return "misses them"
    chosen = best is not None and one["accelerators"] == best["accelerators"]
    return "cheapest that meets the goals" if chosen else "meets the goals"


def _label(one: Mapping[str, Any]) -> str:
    usd = one["usd"]["p50"]
    cost = f"{human_count(usd)} USD\n" if usd is not None else ""
    return f"{cost}goodput {100 * one['goodput']:.1f} %"
