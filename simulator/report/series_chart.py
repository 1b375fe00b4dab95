"""A job over steps while routing drifts: step time, how far its busiest rank is above the mean, and the highest peak.

A line for each policy or other change. A new plan's experts travel before its step: that time is part of the step here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulator.report.paper import FAINT, INK, SIZE_INCHES, legend, titles
from simulator.units import human_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Row = Mapping[str, Any]

_STEP = "routing.step="
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5D4037")
_FEWEST_STEPS = 3


def series(result: Mapping[str, Any]) -> dict[str, list[tuple[int, Row]]]:
    """Steps and their forecasts by what else differs, of the object of `compare --json`; empty where steps do not."""
    found: dict[str, list[tuple[int, Row]]] = {}
    for row in result["rows"]:
        changes = row["change"].split(" ")
        steps = [change for change in changes if change.startswith(_STEP)]
        if len(steps) != 1:
            return {}
        others = " ".join(change for change in changes if change not in steps)
        found.setdefault(others or row["name"], []).append((int(steps[0].removeprefix(_STEP)), row))
    return found if all(len(line) >= _FEWEST_STEPS for line in found.values()) else {}


def series_chart(lines: Mapping[str, Sequence[tuple[int, Row]]]) -> Figure:
    """The chart of *lines*, as :func:`series` finds them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    mean = {name: sum(_step_s(row) for _, row in line) / len(line) for name, line in lines.items()}
    best = min(mean, key=lambda name: mean[name])
    named = next(iter(lines.values()))[0][1]["name"]
    titles(figure, f"{_short(best)}: {human_time(mean[best])} a step in the mean", f"{named}, routing drifts")
    colours = dict(zip(lines, _COLOURS * len(lines), strict=False))
    legend(figure, [(colours[name], _short(name)) for name in lines])
    panels = (
        ("seconds a step, with what a new plan moves", _step_s),
        ("rows of the busiest rank over the mean", lambda row: float(row["routing"]["rank_max_over_mean"])),
        ("HBM peak of the fullest rank, GB", lambda row: float(row["memory"]["hbm"]["peak_bytes"]) / 1e9),
    )
    for place, (title, value) in enumerate(panels):
        axes = figure.add_axes((0.06, 0.62 - 0.28 * place, 0.92, 0.2))
        for name, line in lines.items():
            steps = [step for step, _ in line]
            axes.plot(steps, [value(row) for _, row in line], color=colours[name], lw=1.8, marker=".", ms=5)
        _plain(axes, title, last=place == len(panels) - 1)
    return figure


def _plain(axes: Axes, title: str, *, last: bool) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=INK)
    axes.spines[["right", "top"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(labelsize=9, labelcolor=INK, color=FAINT, labelbottom=last)
    if last:
        axes.set_xlabel("step", fontsize=9.5, color=INK, labelpad=1)


def _short(name: str) -> str:
    """The changes by the last words of their paths: "replan_every 8"."""
    return ", ".join(change.rpartition(".")[2].replace("=", " ") for change in name.split(" "))


def _step_s(row: Row) -> float:
    return float(row["step_time_s"]["p50"] + row["routing"]["rebalance_s"])
