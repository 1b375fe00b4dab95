"""A serving loop over time: sequences that run and wait, room for caches, tokens a second.

What is drawn is of the whole deployment, and of the fullest accelerator where it is about room; means over spans of
time, the highest where it is about room.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simulator.report.paper import FAINT, INK, SIZE_INCHES, legend, titles
from simulator.report.serving_table import answer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulator.forecast.serving.engine import Row
    from simulator.forecast.serving.loop import Course

_RUNNING, _WAITING, _CACHE, _OUTPUT, _PROMPT = "#0072B2", "#E69F00", "#009E73", "#56B4E9", "#CC79A7"
_SPANS = 300
_ENTRIES = (
    (_RUNNING, "running"),
    (_WAITING, "waiting"),
    (_CACHE, "room for caches in use"),
    (_OUTPUT, "tokens of answers"),
    (_PROMPT, "tokens of prompts"),
)


def serving_chart(course: Course, summary: Mapping[str, Any]) -> Figure:
    """The chart of *course*, whose forecast is *summary*."""
    from matplotlib.figure import Figure

    rows = course.rows["decode"]
    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    titles(figure, answer(summary), summary["scenario"])
    legend(figure, _ENTRIES)
    edges = np.linspace(0, course.end_ns / 1e9, _SPANS + 1)
    panels = [figure.add_axes((0.065, bottom, 0.92, 0.235)) for bottom in (0.625, 0.345, 0.065)]
    _sequences(panels[0], rows, edges, course.scale)
    _room(panels[1], rows, edges, summary["memory"]["hbm"]["cache"]["room_bytes"])
    _tokens(panels[2], course, edges, summary)
    for axes in panels:
        axes.set_xlim(0, edges[-1])
        axes.set_ylim(bottom=0)
        axes.spines[["right", "top"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.tick_params(labelsize=9, labelcolor=INK, color=FAINT, labelbottom=axes is panels[-1])
    panels[0].yaxis.set_major_formatter("{x:,.0f}")
    panels[-1].yaxis.set_major_formatter("{x:,.0f}")
    panels[-1].set_xlabel("seconds", fontsize=9.5, color=INK, labelpad=1)
    return figure


def _sequences(axes: Axes, rows: Many[Row], edges: npt.NDArray[np.float64], scale: float) -> None:
    from matplotlib.ticker import MaxNLocator

    running = _mean(rows, [row.running for row in rows], edges) * scale
    waiting = _mean(rows, [row.waiting for row in rows], edges) * scale
    axes.stairs(running, edges, color=_RUNNING, lw=1.6)
    axes.stairs(waiting, edges, color=_WAITING, lw=1.6)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_title("sequences", loc="left", fontsize=10.5, color=INK)


def _room(axes: Axes, rows: Many[Row], edges: npt.NDArray[np.float64], room_bytes: float) -> None:
    highest = np.zeros(len(edges) - 1)
    for row in rows:
        first, last = np.searchsorted(edges, (row.begin_ns / 1e9, row.end_ns / 1e9), side="right") - 1
        highest[first : last + 1] = np.maximum(highest[first : last + 1], row.used_bytes)
    axes.stairs(highest / 1e9, edges, color=_CACHE, fill=True, alpha=0.8)
    axes.axhline(room_bytes / 1e9, color=INK, lw=1.2, ls=(0, (4, 1.5)))
    axes.set_title("caches on the fullest accelerator, GB; dashed: room", loc="left", fontsize=10.5, color=INK)


def _tokens(axes: Axes, course: Course, edges: npt.NDArray[np.float64], summary: Mapping[str, Any]) -> None:
    prompts = [row for rows in course.rows.values() for row in rows]
    decode = course.rows["decode"]
    for colour, rows, made in (
        (_PROMPT, prompts, [row.prompt_tokens for row in prompts]),
        (_OUTPUT, decode, [row.decoding * row.iterations for row in decode]),
    ):
        axes.stairs(_rate(rows, made, edges) * course.scale, edges, color=colour, lw=1.6)
    accelerators = summary["output_tokens_per_s"] / summary["output_tokens_per_s_per_accelerator"]
    many = f", {round(accelerators)} accelerators together" if accelerators > 1 else ""
    axes.set_title(f"tokens a second{many}", loc="left", fontsize=10.5, color=INK)


def _mean(rows: Many[Row], values: Many[float], edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of *values* that hold during their rows, over each span, summed over engines; nothing between rows."""
    seconds = [(row.end_ns - row.begin_ns) / 1e9 for row in rows]
    return _rate(rows, [value * s for value, s in zip(values, seconds, strict=True)], edges)


def _rate(rows: Many[Row], amounts: Many[float], edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """*amounts* that come evenly during their rows, a second, over each span."""
    if not rows:
        return np.zeros(len(edges) - 1)
    began = np.array([row.begin_ns for row in rows]) / 1e9
    ended = np.array([row.end_ns for row in rows]) / 1e9
    rates = np.array(amounts, float) / (ended - began)
    # A sum of ramps, each of which rises while its row lasts.
    points = np.concatenate((began, ended))
    order = np.argsort(points, kind="stable")
    slopes = np.cumsum(np.concatenate((rates, -rates))[order])
    at = points[order]
    done = np.concatenate(([0.0], np.cumsum(slopes[:-1] * np.diff(at))))
    return np.asarray(np.diff(np.interp(edges, at, done)) / np.diff(edges))
