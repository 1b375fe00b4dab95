"""Forecasts side by side: a bar a variant of where its step goes, and beside it the peak of the memory.

Variants that share their first change, or their scenario, stand together under its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.headline import time_label
from simulator.report.paper import FAINT, INK, SIZE_INCHES, legend, titles
from simulator.units import human_bytes, human_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Row = Mapping[str, Any]

_COLOURS = {
    "compute_s": "#0072B2",
    "exposed_all_to_all_s": "#D55E00",
    "exposed_fsdp_s": "#E69F00",
    "exposed_tp_s": "#C8B400",
    "exposed_cp_s": "#009E73",
    "exposed_pp_s": "#882255",
    "exposed_swap_s": "#5D4037",
    "exposed_host_s": "#A1887F",
    "exposed_drives_s": "#78909C",
    "pipeline_bubble_s": "#CC79A7",
    "imbalance_s": "#7D8B96",
    "launch_bound_s": "#D5D9DC",
}
_OTHER = "#B4B9BD"
_LEAST_SHARE = 0.005
"""Of the longest step, the part below which a kind of time has no entry in the legend."""
_BETWEEN_GROUPS = 1.2
_LONG_TITLE = 30
"""Characters of a variant's name that leave no room to set it against the slowest."""
_MOST_NAMES = 2
"""Scenarios that are all named beside the title."""
_FEWEST_PLACES = 8
"""Bars are no thicker than with so many."""
_MEMORY = "#56B4E9"


def comparison_chart(result: Mapping[str, Any]) -> Figure:
    """The chart of *result*, the object of `compare --json`."""
    from matplotlib.figure import Figure

    rows = result["rows"]
    longest = max(_step_s(row) for row in rows)
    parts = [
        part for part in rows[0]["time"] if max(row["time"].get(part, 0.0) for row in rows) > _LEAST_SHARE * longest
    ]
    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    names = list(dict.fromkeys(row["name"] for row in rows))
    titles(figure, _answer(rows), " and ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} scenarios")
    legend(figure, [(_COLOURS.get(part, _OTHER), time_label(part)) for part in parts])
    places = _places(rows)
    steps, memory = figure.add_axes((0.2, 0.06, 0.5, 0.79)), figure.add_axes((0.735, 0.06, 0.24, 0.79))
    _draw_steps(steps, rows, parts, places)
    _draw_memory(memory, rows, places)
    headed = any(_group(row, _several(rows)) for row in rows)
    for axes in (steps, memory):
        top = places[0] - 0.6 - (_BETWEEN_GROUPS if headed else 0)
        axes.set_ylim(max(places[-1] + 0.6, top + _FEWEST_PLACES), top)
        axes.spines[["right", "top", "bottom"]].set_visible(False)
        axes.spines["left"].set_color(FAINT)
        axes.tick_params(labelsize=9.5, labelcolor=INK, color=FAINT, length=0)
    return figure


def _answer(rows: list[Row]) -> str:
    """The fastest of those that fit, against the slowest of them."""
    fitting = [row for row in rows if row["fits"]]
    if not fitting:
        return "None of these fits"
    best, worst = min(fitting, key=_step_s), max(fitting, key=_step_s)
    times = _step_s(worst) / _step_s(best)
    named = " ".join(_values(best)) or best["name"]
    against = f", {times:.1f} x faster than the slowest" if times > 1 and len(named) <= _LONG_TITLE else ""
    return f"{named}: {human_time(_step_s(best))} a step{against}"


def _values(row: Row) -> list[str]:
    return [text.partition("=")[2].rpartition("/")[2].removesuffix(".json") for text in row["change"].split()]


def _group(row: Row, named: bool) -> str:
    """What *row* stands under; *named* where several scenarios are compared."""
    values = _values(row)
    return row["name"] if named else values[0] if len(values) > 1 else ""


def _label(row: Row, named: bool) -> str:
    values = _values(row)
    return " ".join(values if named or len(values) == 1 else values[1:]) or row["name"]


def _places(rows: list[Row]) -> list[float]:
    """Heights of the bars, from top to bottom, with room above each group."""
    groups = [_group(row, _several(rows)) for row in rows]
    place, places = -1.0, []
    for number, group in enumerate(groups):
        place += 1 + (_BETWEEN_GROUPS if number and group and group != groups[number - 1] else 0)
        places.append(place)
    return places


def _several(rows: list[Row]) -> bool:
    """Whether scenarios head groups of their variants: there are several, and bars have names of their own."""
    return len({row["name"] for row in rows}) > 1 and any(_values(row) for row in rows)


def _draw_steps(axes: Axes, rows: list[Row], parts: list[str], places: list[float]) -> None:
    longest, named = max(_step_s(row) for row in rows), _several(rows)
    before = ""
    for row, place in zip(rows, places, strict=True):
        left = 0.0
        for part in parts:
            width = row["time"].get(part, 0.0)
            axes.barh(place, width, 0.72, left, color=_COLOURS.get(part, _OTHER), edgecolor="white", linewidth=0.4)
            left += width
        axes.text(_step_s(row) + 0.008 * longest, place, human_time(_step_s(row)), va="center", fontsize=9.5, color=INK)
        across = axes.get_yaxis_transform()
        axes.text(1.0, place, _skew(row), va="center", ha="right", fontsize=8.5, color=FAINT, transform=across)
        group = _group(row, named)
        if group != before:
            # White behind a long one: it crosses the axis.
            axes.text(-0.385, place - 0.95, group, fontsize=10, weight="bold", color=INK, va="center", transform=across,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0})  # fmt: skip
        before = group
    axes.set_xlim(0, 1.45 * longest)
    axes.set_xticks([])
    axes.set_yticks(places, [_label(row, named) for row in rows])


def _skew(row: Row) -> str:
    busy, dropped = row["routing"]["rank_max_over_mean"], row["routing"].get("dropped_share", 0.0)
    told = [f"{dropped:.0%} of rows dropped".replace("%", " %")] if dropped else []
    return ", ".join([*told, f"busiest rank x{busy:.2f}"]) if busy > 1 else ""


def _draw_memory(axes: Axes, rows: list[Row], places: list[float]) -> None:
    peaks = [row["memory"]["hbm"]["peak_bytes"] for row in rows]
    capacities = [row["memory"]["hbm"]["capacity_bytes"] for row in rows]
    axes.barh(places, peaks, 0.72, color=_MEMORY)
    axes.vlines(capacities, [p - 0.5 for p in places], [p + 0.5 for p in places], color=INK, lw=1.2, ls=(0, (4, 1.5)))
    widest = max(*peaks, *capacities)
    for peak, place in zip(peaks, places, strict=True):
        label = axes.text(peak + 0.012 * widest, place, human_bytes(peak), va="center", fontsize=9.5, color=INK)
        # A capacity just above the peak would run through the label.
        label.set_bbox({"facecolor": "white", "linewidth": 0, "pad": 1})
    axes.set_xlim(0, 1.18 * widest)
    axes.set_title("HBM peak, dashed: capacity", loc="left", fontsize=10.5, color=INK)
    axes.set_xticks([])
    axes.set_yticks([])


def _step_s(row: Row) -> float:
    return float(row["step_time_s"]["p50"])
