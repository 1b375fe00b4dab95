"""A serving loop over time: sequences that run and wait, room for caches, tokens a second.

What is drawn is of the whole deployment, and of the fullest accelerator where it is about room; means over spans of
time, the highest where it is about room.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.course_series import CourseSeries, course_series
from simulator.report.paper import FAINT, INK, SIZE_INCHES, legend, titles
from simulator.report.serving_table import answer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulator.forecast.serving.loop import Course

RUNNING, WAITING, CACHE, OUTPUT, PROMPT = "#0072B2", "#E69F00", "#009E73", "#56B4E9", "#CC79A7"
_ENTRIES = (
    (RUNNING, "running"),
    (WAITING, "waiting"),
    (CACHE, "room for caches in use"),
    (OUTPUT, "tokens of answers"),
    (PROMPT, "tokens of prompts"),
)


def serving_chart(course: Course, summary: Mapping[str, Any]) -> Figure:
    """The chart of *course*, whose forecast is *summary*."""
    from matplotlib.figure import Figure

    found = course_series(course)
    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    titles(figure, answer(summary), summary["scenario"])
    legend(figure, _ENTRIES)
    panels = [figure.add_axes((0.065, bottom, 0.92, 0.235)) for bottom in (0.625, 0.345, 0.065)]
    _sequences(panels[0], found)
    _room(panels[1], found, summary["memory"]["hbm"]["cache"]["room_bytes"])
    _tokens(panels[2], found, summary)
    for axes in panels:
        axes.set_xlim(0, found.edges_s[-1])
        axes.set_ylim(bottom=0)
        axes.spines[["right", "top"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.tick_params(labelsize=9, labelcolor=INK, color=FAINT, labelbottom=axes is panels[-1])
    panels[0].yaxis.set_major_formatter("{x:,.0f}")
    panels[-1].yaxis.set_major_formatter("{x:,.0f}")
    panels[-1].set_xlabel("seconds", fontsize=9.5, color=INK, labelpad=1)
    return figure


def _sequences(axes: Axes, found: CourseSeries) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.stairs(found.running, found.edges_s, color=RUNNING, lw=1.6)
    axes.stairs(found.waiting, found.edges_s, color=WAITING, lw=1.6)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_title("sequences", loc="left", fontsize=10.5, color=INK)


def _room(axes: Axes, found: CourseSeries, room_bytes: float) -> None:
    axes.stairs(found.used_bytes / 1e9, found.edges_s, color=CACHE, fill=True, alpha=0.8)
    axes.axhline(room_bytes / 1e9, color=INK, lw=1.2, ls=(0, (4, 1.5)))
    axes.set_title("caches on the fullest accelerator, GB; dashed: room", loc="left", fontsize=10.5, color=INK)


def _tokens(axes: Axes, found: CourseSeries, summary: Mapping[str, Any]) -> None:
    axes.stairs(found.prompt_tokens_per_s, found.edges_s, color=PROMPT, lw=1.6)
    axes.stairs(found.output_tokens_per_s, found.edges_s, color=OUTPUT, lw=1.6)
    axes.set_title(tokens_title(summary), loc="left", fontsize=10.5, color=INK)


def tokens_title(summary: Mapping[str, Any]) -> str:
    """What the tokens a second are of."""
    accelerators = summary["output_tokens_per_s"] / summary["output_tokens_per_s_per_accelerator"]
    many = f", {round(accelerators)} accelerators together" if accelerators > 1 else ""
    return f"tokens a second{many}"
