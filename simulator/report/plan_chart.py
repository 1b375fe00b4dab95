"""Splits as points: time of a step against memory, so that the front of what cannot be bettered is the lower left edge.

Simulated splits are where they were found to be; of the others only bounds are known, so they are drawn faintly where
they would be at best.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.paper import FAINT, INK, SIZE_INCHES, titles
from simulator.report.plan_table import counted_line, loss_label, split_label
from simulator.units import human_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "winner": "#009E73",
    "fits": "#0072B2",
    "tight": "#E69F00",
    "does not fit": "#D55E00",
    "does not survive": "#CC79A7",
    "left": "#9AA0A6",
    "pruned": "#D5D9DC",
}
_WORDS = {
    "winner": "winner",
    "fits": "simulated, fits",
    "tight": "tight (time at best)",
    "does not fit": "does not fit (time at best)",
    "does not survive": "simulated, ends with nodes lost",
    "left": "left, may be faster (bounds)",
    "pruned": "ruled out (bounds)",
}
_GB = 1e9
_SLOWEST_SHOWN = 3.0
"""Times the winner's step: what is slower says nothing more."""


_TOLD = 6
"""Splits that are told of beside the chart."""
_KEY_LEFT, _KEY_TOP, _KEY_COLUMNS = 0.72, 0.83, 46
_KEY_LINE, _KEY_GAP = 0.0225, 0.018
"""Heights of a line and between splits, of the figure's."""
_COUNTED_LETTERS = 150
"""That the line of counts has room for at its usual size."""
_NEAR = 0.02
"""Of an axis, how near numbers would lie over each other."""


def plan_chart(plan: Mapping[str, Any]) -> Figure:
    """Draw *plan*, the object of `plan --json`, which has a winner."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    best = f"Best split found: {human_time(plan['winner']['step_time_s'])} a step on {plan['accelerators']:,} cards"
    titles(figure, best, plan["scenario"])
    counted = counted_line(plan)
    size = 11 * min(1.0, _COUNTED_LETTERS / len(counted))
    figure.text(0.015, 0.915, counted, fontsize=size, color=FAINT, va="center")
    axes = figure.add_axes((0.065, 0.09, 0.63, 0.74))
    points = [_point(split) for split in plan["splits"] if split["verdict"] in COLOURS]
    limit_s = _SLOWEST_SHOWN * plan["winner"]["step_time_s"]
    _draw(axes, [point for point in points if point[0] <= limit_s])
    _mark(figure, axes, plan)
    axes.set_xlabel("time of a step, s", color=INK)
    axes.set_ylabel("peak of device memory, GB", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, frameon=False, fontsize=9.5, handletextpad=0.3)
    return figure


def _point(split: Mapping[str, Any]) -> tuple[float, float, str, bool]:
    """(seconds, GB, verdict, on the front)."""
    step_s, peak = (
        split[found] if split[found] is not None else split[least]
        for found, least in (("step_time_s", "step_time_at_least_s"), ("peak_bytes", "peak_at_least_bytes"))
    )
    return step_s, peak / _GB, split["verdict"], split["pareto"]


def _draw(axes: Axes, points: list[tuple[float, float, str, bool]]) -> None:
    for verdict in reversed(COLOURS):
        mine = [point for point in points if point[2] == verdict]
        if mine:
            simulated = verdict not in ("left", "pruned")
            axes.scatter(
                [point[0] for point in mine], [point[1] for point in mine], label=_WORDS[verdict],
                color=COLOURS[verdict], s=260 if verdict == "winner" else 90 if simulated else 28,
                marker="*" if verdict == "winner" else "o", zorder=4 if simulated else 2, linewidths=0,
            )  # fmt: skip
    front = sorted((seconds, held) for seconds, held, _, on in points if on)
    axes.plot(
        [seconds for seconds, _ in front], [held for _, held in front], color=COLOURS["winner"], lw=1.4, zorder=3,
        drawstyle="steps-post",
    )  # fmt: skip


def _mark(figure: Figure, axes: Axes, plan: Mapping[str, Any]) -> None:
    """Number the winner and the next few simulated splits, those at one place together, and say beside the chart what
    they are.
    """
    told = [split for split in plan["splits"] if split["step_time_s"] is not None][:_TOLD]
    top = _KEY_TOP
    for (seconds, held), alike in _together(axes, told).items():
        axes.annotate(
            ", ".join(map(str, alike)), (seconds, held), xytext=(0, 9), textcoords="offset points", ha="center",
            fontsize=10, fontweight="bold", color=INK, zorder=5,
        )  # fmt: skip
    for number, split in enumerate(told, 1):
        words = _told(split)
        figure.text(_KEY_LEFT, top, f"{number}", fontsize=11, fontweight="bold", color=INK, va="top")
        figure.text(_KEY_LEFT + 0.018, top, words, fontsize=9, color=INK, va="top", linespacing=1.35)
        top -= _KEY_LINE * (1 + words.count("\n")) + _KEY_GAP


def _together(axes: Axes, told: list[Mapping[str, Any]]) -> dict[tuple[float, float], list[int]]:
    """Numbers of the splits that are *told*, by place: those whose numbers would lie over each other have one."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    numbers: dict[tuple[float, float], list[int]] = {}
    for number, split in enumerate(told, 1):
        place = split["step_time_s"], split["peak_bytes"] / _GB
        near = (
            other
            for other in numbers
            if abs(other[0] - place[0]) < _NEAR * (right - left) and abs(other[1] - place[1]) < _NEAR * (top - bottom)
        )
        numbers.setdefault(next(near, place), []).append(number)
    return numbers


def _told(split: Mapping[str, Any]) -> str:
    loss = loss_label(split["loses_by"])
    label = textwrap.fill(split_label(split), _KEY_COLUMNS)
    return "\n".join([label, _figures(split), *([loss] if loss else [])])


def _figures(split: Mapping[str, Any]) -> str:
    return f"{split['step_time_s']:.3g} s, {split['peak_bytes'] / _GB:.0f} GB"
