"""Who is hot when: the load of ranks over windows of steps, and how far the busiest rank and expert are above the mean.

A rank's load is its share of a layer's rows over an even share, mean over layers. Ranks hold experts contiguously.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.report.paper import FAINT, INK, SIZE_INCHES, titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulator.routing.windows import Windows

_HOT = "#D55E00"
_COLOUR_RANGE = 4.0
"""Load over the mean at which colour ends, and its reciprocal at the other end."""
FEWEST_WINDOWS = 3


def drift_chart(windows: Windows, name: str) -> Figure:
    """*windows* of the trace *name*."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    titles(figure, _answer(windows), name)
    top, heat = figure.add_axes((0.055, 0.62, 0.93, 0.24)), figure.add_axes((0.055, 0.085, 0.93, 0.42))
    _draw_hottest(top, windows)
    _draw_ranks(heat, figure.add_axes((0.825, 0.555, 0.16, 0.012)), windows)
    for axes in (top, heat):
        _step_axis(axes, windows.first_steps)
        axes.tick_params(labelsize=8.5, labelcolor=INK, color=FAINT)
        axes.spines[["right", "top"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
    return figure


def _step_axis(axes: Axes, steps: tuple[int, ...]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlim(-0.5, len(steps) - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(16, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: str(steps[round(at)]) if 0 <= at < len(steps) else ""))


def _answer(windows: Windows) -> str:
    leaders, ranks = len(set(windows.hottest_rank.tolist())), windows.load.shape[1]
    count = len(windows.first_steps)
    if leaders == 1:
        return f"Rank {int(windows.hottest_rank[0])} is the busiest of {ranks} in all {count} windows"
    return f"{leaders} of {ranks} ranks take turns as the busiest over {count} windows"


def _draw_hottest(axes: Axes, windows: Windows) -> None:
    at = np.arange(len(windows.first_steps))
    axes.plot(at, windows.expert_max_over_mean, color=FAINT, lw=1, marker=".", ms=4)
    axes.plot(at, windows.rank_max_over_mean, color=_HOT, lw=1.8, marker=".", ms=6)
    axes.set_ylim(bottom=0.98)
    for place, words, colour in ((0.0, "x mean, over layers:", INK), (0.125, "busiest rank", _HOT),
                                 (0.205, "busiest expert", FAINT)):  # fmt: skip
        axes.text(place, 1.03, words, transform=axes.transAxes, fontsize=10.5, color=colour)
    axes.grid(axis="y", color=FAINT, lw=0.3, alpha=0.5)
    axes.tick_params(labelbottom=False)


def _draw_ranks(axes: Axes, colours: Axes, windows: Windows) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator

    warmth = np.maximum(windows.load.T, 1 / _COLOUR_RANGE)
    norm = LogNorm(1 / _COLOUR_RANGE, _COLOUR_RANGE)
    image = axes.imshow(warmth, cmap="RdBu_r", norm=norm, aspect="auto", interpolation="nearest")
    axes.plot(np.arange(len(windows.first_steps)), windows.hottest_rank, color=INK, ls="", marker="o", ms=3)
    axes.set_title("load of each rank, a dot on the busiest", loc="left", fontsize=10.5, color=INK)
    axes.set_ylabel("rank", fontsize=9.5, color=INK)
    axes.set_xlabel("first step of the window", fontsize=9.5, color=INK, labelpad=1)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    bar = axes.figure.colorbar(image, cax=colours, orientation="horizontal", extend="both")
    bar.set_ticks([1 / 4, 1 / 2, 1, 2, 4], labels=["1/4", "1/2", "mean", "x2", "x4"])
    bar.ax.minorticks_off()
    bar.ax.xaxis.set_ticks_position("top")
    bar.ax.tick_params(labelsize=7.5, length=2, pad=1, color=FAINT, labelcolor=INK)
    bar.outline.set_linewidth(0.4)
