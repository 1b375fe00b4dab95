"""A fit as a picture: measured calls with their spread, the price, and how far the two lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simulator.calibration.pricing import priced_s
from simulator.report.paper import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulator.calibration.collective_timings import Form
    from simulator.calibration.point import Point
    from simulator.hardware.accelerator import Accelerator

SIZE_INCHES = (11.0, 3.3)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5D6770", "#882255")
MARK = 9
FEWEST_BYTES = 4096


def fit_chart(kind: str, points: Sequence[Point], accelerator: Accelerator, clock_s: float) -> Figure:
    """Seconds by size on the left, price over measurement on the right; a colour for each format and direction."""
    figure, left, right = _panels(kind)
    groups: dict[str, list[Point]] = {}
    for point in sorted(points, key=_size):
        groups.setdefault(f"{point.dtype}{', backward' if point.backward else ''}", []).append(point)
    for number, (label, some) in enumerate(groups.items()):
        sizes = np.array([_size(p) for p in some])
        measured = np.array([p.seconds for p in some])
        priced = np.array([priced_s(p, accelerator) for p in some]) + clock_s
        colour = COLOURS[number % len(COLOURS)]
        spread = np.array([[max(0.0, p.seconds - p.low_s), max(0.0, p.high_s - p.seconds)] for p in some]).T
        left.errorbar(sizes, measured, yerr=spread, fmt="o", ms=3, lw=0.7, color=colour, label=f"{label}, measured")
        left.scatter(sizes, priced, s=MARK * 2, marker="_", color=INK, linewidths=1.0, zorder=3)
        right.scatter(measured, priced / measured - 1, s=MARK, color=colour)
    flops = any(point.flops for point in points)
    left.set_xlabel("FLOPs of the call" if flops else "bytes of the call", fontsize=8)
    _finish(left, right)
    return figure


def form_chart(form: Form, timed: Sequence[tuple[float, float]]) -> Figure:
    """A collective's timings beside its physical form."""
    figure, left, right = _panels(form.operation)
    sizes, seconds = np.array(timed).T
    line = np.geomspace(max(FEWEST_BYTES, sizes[0]), sizes[-1], 100)
    left.plot(line, form.seconds(line), color=INK, lw=1.0, label="form")
    left.scatter(sizes, seconds, s=MARK, color=COLOURS[0], label="measured, less the clock")
    right.scatter(seconds, form.seconds(sizes) / seconds - 1, s=MARK, color=COLOURS[0])
    left.set_xlabel("bytes of the whole buffer", fontsize=8)
    _finish(left, right)
    return figure


def _size(point: Point) -> float:
    return point.flops or point.bytes or 1.0


def _panels(title: str) -> tuple[Figure, Axes, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.07, right=0.985, top=0.87, bottom=0.16, wspace=0.2)
    return figure, left, right


def _finish(left: Axes, right: Axes) -> None:
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_ylabel("seconds (dashes: priced)", fontsize=8)
    left.legend(fontsize=7, frameon=False)
    right.set_xscale("log")
    right.set_xlabel("measured seconds", fontsize=8)
    right.set_ylabel("priced / measured - 1", fontsize=8)
    right.axhline(0.0, color=FAINT, lw=0.8)
    most = max(0.1, *(abs(limit) for limit in right.get_ylim()))
    right.set_ylim(-most, most)
    for axes in (left, right):
        axes.tick_params(which="both", labelsize=6, labelcolor=INK, color=FAINT)
