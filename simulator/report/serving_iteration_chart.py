"""Where an iteration's time goes: a bar for the mean one that only decodes, one for the mean one with prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.paper import FAINT, INK, SIZE_INCHES, legend, titles
from simulator.report.serving_table import PARTS
from simulator.units import human_time, plain_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"decode": "decoding alone", "with_prompts": "with prompts"}
_DARK = frozenset({"dense_s", "attention_s", "head_s", "pipeline_s", "exchange_s"})
"""Parts whose colour takes white letters."""
_ROOM, _HEIGHT = 0.88, 0.26
"""Of the figure's height, what lies under the legend, and what a bar takes of it."""
_LEAST_SHARE = 0.005
_LEAST_WORDS = 0.045
"""Of a bar, the part below which its time is not written into it."""


def iteration_chart(summary: Mapping[str, Any]) -> Figure:
    """The chart of *summary*, the object of `run --json`."""
    from matplotlib.figure import Figure

    kinds = {kind: summary["iteration_s"][kind] for kind in NAMES if kind in summary["iteration_s"]}
    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    titles(figure, f"Limited by {summary['limited_by']}", summary["scenario"])
    shown = [part for part in PARTS if any(_share(one, part) > _LEAST_SHARE for one in kinds.values())]
    legend(figure, [(PARTS[part][1], PARTS[part][0]) for part in shown])
    for number, (kind, one) in enumerate(kinds.items()):
        slot = _ROOM / len(kinds)
        axes = figure.add_axes((0.03, _ROOM - slot * (number + 0.5) - _HEIGHT / 2, 0.94, _HEIGHT))
        _bar(axes, one, shown)
        tokens = f", {plain_number(one['prompt_tokens'], 4)} tokens of prompts" if kind == "with_prompts" else ""
        words = (
            f"{NAMES[kind]}: {human_time(one['p50'])} (p10 {human_time(one['p10'])}, p90 {human_time(one['p90'])}), "
            f"{plain_number(one['sequences'], 4)} sequences decode on each rank{tokens}; "
            f"{one['iterations']:,} iterations"
        )
        axes.set_title(words, loc="left", fontsize=11.5, color=INK)
    return figure


def _share(one: Mapping[str, Any], part: str) -> float:
    whole = sum(one["parts"].values())
    return float(one["parts"].get(part, 0.0) / whole) if whole else 0.0


def _bar(axes: Axes, one: Mapping[str, Any], shown: list[str]) -> None:
    left, whole = 0.0, sum(one["parts"].values())
    for part in shown:
        width = one["parts"].get(part, 0.0)
        axes.barh(0, width, 0.8, left, color=PARTS[part][1], edgecolor="white", linewidth=0.8)
        if width > _LEAST_WORDS * whole:
            told = f"{human_time(width)}\n{width / whole:.0%}".replace("%", " %")
            ink = "white" if part in _DARK else INK
            axes.text(left + width / 2, 0, told, ha="center", va="center", fontsize=10, color=ink)
        left += width
    axes.set_xlim(0, whole)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
