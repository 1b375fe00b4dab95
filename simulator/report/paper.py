"""The look that the charts share: slide size, ink, title, legend, time axis and a PNG whose bytes are the same each
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import TYPE_CHECKING, BinaryIO

from simulator.units import human_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_INCHES = (13.333, 7.5)
"""A slide of 16:9."""
DOTS_PER_INCH = 150
INK, FAINT = "#222222", "#6B7075"
_TITLE_LETTERS, _NAME_LETTER = 63.0, 0.42
"""Letters of the answer's usual size that a title's line has room for, and what a letter of the name takes of it."""
_LEGEND_LETTERS, _PATCH_LETTERS = 180, 5
"""That a legend's row has room for at its usual size, and that a patch of colour takes of it."""


def titles(figure: Figure, answer: str, scenario: str) -> None:
    """The answer in large letters at the top left, the scenario's name at the right; a long answer in smaller ones."""
    room = _TITLE_LETTERS - _NAME_LETTER * len(scenario)
    size = 19 * min(1.0, room / max(1, len(answer)))
    figure.text(0.015, 0.96, answer, fontsize=size, fontweight="bold", color=INK, va="center")
    figure.text(0.985, 0.96, scenario, fontsize=11, color=FAINT, va="center", ha="right")


def legend(figure: Figure, entries: Sequence[tuple[str, str]]) -> None:
    """One row of (colour, label) under the title, outside every plot."""
    from matplotlib.patches import Patch

    # A long row shrinks to the width of the figure.
    size = (
        9.5 * min(1.0, _LEGEND_LETTERS / sum(len(label) + _PATCH_LETTERS for _, label in entries)) if entries else 9.5
    )
    figure.legend(
        handles=[Patch(color=colour, label=label) for colour, label in entries],
        loc="upper left", bbox_to_anchor=(0.008, 0.94), ncols=max(1, len(entries)), frameon=False, fontsize=size,
        handlelength=1.0, handleheight=1.0, columnspacing=1.3, handletextpad=0.45,
    )  # fmt: skip


def time_ticks(axes: Axes) -> None:
    """Label an x axis in seconds with "0.5 s" or "20 ms"; far from zero, as distance from its beginning."""
    from matplotlib.ticker import MaxNLocator

    left, right = axes.get_xlim()
    start = float(left) if left > 0.2 * (right - left) else 0.0
    candidates = MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]).tick_values(left - start, right - start)
    ticks = [float(tick) for tick in candidates if left - start <= tick <= right - start]
    if start:
        # The beginning's label is long: it stands to the right of its tick, which needs room.
        ticks = [0.0, *(tick for tick in ticks if tick > 0.2 * (right - left))]
    labels = [f"{'+' if start else ''}{human_time(tick)}" for tick in ticks]
    if start:
        decimals = max(0, 3 - floor(log10(right - left)))
        labels[0] = f"at {start:.{decimals}f} s"
    axes.set_xticks([start + tick for tick in ticks], labels)
    written = axes.get_xticklabels()
    if start:
        written[0].set_horizontalalignment("left")
    if ticks and start + ticks[-1] > right - 0.05 * (right - left):
        written[-1].set_horizontalalignment("right")
    axes.tick_params(axis="x", labelsize=8.5, labelcolor=INK, color=FAINT)
    axes.spines["bottom"].set_color(FAINT)


def write_png(figure: Figure, file: BinaryIO) -> None:
    """Write *figure* to *file* without the version of the drawing library, so that equal pictures are equal files."""
    figure.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
