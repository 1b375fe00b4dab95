"""Cases of a sweep as points: time against memory, a colour for each value of the first setting, the front a line.

Where all cases take as many tokens in a step, time is that of a step, elsewhere that of a million tokens.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.paper import FAINT, INK, SIZE_INCHES, legend, titles
from simulator.units import human_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Case = Mapping[str, Any]

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#7D8B96")
_MARKS = {"fits": "o", "tight": "D", "does not fit": "x"}
_GB, _MILLION, _ALIKE = 1e9, 1e6, 1e-6
_SLOWEST_SHOWN = 2.0
"""Times the fastest: what is slower says nothing more."""
_TOLD = 9
"""Cases of the front that are told of beside the chart."""
_KEY_LEFT, _KEY_TOP, _KEY_COLUMNS = 0.72, 0.83, 46
_KEY_LINE, _KEY_GAP = 0.0235, 0.016
"""Heights of a line and between cases, of the figure's."""


def sweep_chart(result: Mapping[str, Any]) -> Figure:
    """Draw *result*, the object of `plan --over --json`, some cases of which have a forecast."""
    from matplotlib.figure import Figure

    cases = [case for case in result["cases"] if case["step_time_s"] is not None]
    tokens = [case["tokens_per_s"] * case["step_time_s"] for case in cases]
    unit = None if max(tokens) - min(tokens) <= _ALIKE * max(tokens) else _MILLION
    front = sorted((case for case in cases if case["pareto"]), key=lambda case: _seconds(case, unit))
    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    titles(figure, _answer(front), result["scenario"])
    axes = figure.add_axes((0.065, 0.09, 0.63, 0.74))
    first, values = next(iter(result["over"].items()))
    colours = {value: _COLOURS[number % len(_COLOURS)] for number, value in enumerate(values)}
    limit_s = _SLOWEST_SHOWN * min(_seconds(case, unit) for case in cases)
    _draw(axes, [case for case in cases if _seconds(case, unit) <= limit_s], colours, first, unit)
    _join(axes, front, unit)
    legend(figure, [(colour, f"{first.rpartition('.')[2]} {value}") for value, colour in colours.items()])
    said = (
        "dot: fits; diamond: tight; cross: does not fit; line: what nothing that fits betters in time, cards and memory"
    )
    figure.text(0.015, 0.885, said, fontsize=10, color=FAINT, va="center")
    _tell(figure, axes, front, unit)
    axes.set_xlabel("time of a step, s" if unit is None else "time of a million tokens, s", color=INK)
    axes.set_ylabel("peak of device memory, GB", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _answer(front: list[Case]) -> str:
    """The fastest that fits."""
    if not front:
        return "None of these fits"
    return f"{_words(front[0])}: {human_time(front[0]['step_time_s'])} a step"


def _seconds(case: Case, tokens: float | None) -> float:
    """Of so many *tokens*, or of its step."""
    return float(case["step_time_s"] if tokens is None else tokens / case["tokens_per_s"])


def _draw(axes: Axes, cases: list[Case], colours: Mapping[str, str], first: str, unit: float | None) -> None:
    for case in cases:
        colour, at = colours[case["settings"][first]], (_seconds(case, unit), case["peak_bytes"] / _GB)
        axes.plot(*at, _MARKS[case["verdict"]], ms=8, mew=1.6, color=colour, alpha=0.85, zorder=3)
    capacities = {case["capacity_bytes"] / _GB for case in cases}
    for capacity in capacities:
        axes.axhline(capacity, color=INK, lw=1.1, ls=(0, (4, 2)), zorder=1)


def _join(axes: Axes, front: list[Case], unit: float | None) -> None:
    xs, ys = ([pick(case) for case in front] for pick in (lambda c: _seconds(c, unit), lambda c: c["peak_bytes"] / _GB))
    axes.plot(xs, ys, color=FAINT, lw=1.3, zorder=2, drawstyle="steps-post")


def _tell(figure: Figure, axes: Axes, front: list[Case], unit: float | None) -> None:
    """Number the cases of the front, those at one place together, and say beside the chart what they are."""
    top, numbers = _KEY_TOP, dict[str, list[int]]()
    for number, case in enumerate(front[:_TOLD], 1):
        numbers.setdefault(_figures(case), []).append(number)
    for alike in numbers.values():
        case = front[alike[0] - 1]
        at = _seconds(case, unit), case["peak_bytes"] / _GB
        axes.annotate(
            ", ".join(map(str, alike)), at, xytext=(0, 9), textcoords="offset points", ha="center", fontsize=10,
            fontweight="bold", color=INK, zorder=5,
        )  # fmt: skip
    for number, case in enumerate(front[:_TOLD], 1):
        words = "\n".join([textwrap.fill(_words(case), _KEY_COLUMNS), _figures(case)])
        figure.text(_KEY_LEFT, top, f"{number}", fontsize=11, fontweight="bold", color=INK, va="top")
        figure.text(_KEY_LEFT + 0.018, top, words, fontsize=9, color=INK, va="top", linespacing=1.35)
        top -= _KEY_LINE * (1 + words.count("\n")) + _KEY_GAP


def _words(case: Case) -> str:
    """What sets it apart: the last part of each path, and its value."""
    return ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in case["settings"].items())


def _figures(case: Case) -> str:
    return f"{case['step_time_s']:.4g} s, {case['peak_bytes'] / _GB:.0f} GB"
