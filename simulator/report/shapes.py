"""Boxes, lines and arcs of the pictures of machines, in one set of colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.report.paper import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "accelerator": "#0072B2",
    "nic": "#E69F00",
    "switch": "#009E73",
    "pcie switch": "#B7C3CC",
    "host bridge": "#9AA0A6",
    "numa": "#E4E8EB",
    "host": "#56B4E9",
    "drive": "#CC79A7",
}
_DARK = {"accelerator", "switch", "host bridge"}


def box(axes: Axes, x: float, y: float, width: float, height: float, kind: str, words: str, size: float = 8) -> None:
    """A box of *kind* around the point (x, y) with *words* in it."""
    from matplotlib.patches import FancyBboxPatch

    pad = 0.12 * min(width, height)
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2 + pad, y - height / 2 + pad), width - 2 * pad, height - 2 * pad,
            boxstyle=f"round,pad={pad}", fc=COLOURS[kind], ec="none", zorder=3,
        )
    )  # fmt: skip
    ink = "white" if kind in _DARK else INK
    axes.text(x, y, words, ha="center", va="center", fontsize=size, color=ink, zorder=4)


def line(
    axes: Axes, one: tuple[float, float], other: tuple[float, float], colour: str = FAINT, width: float = 1.0
) -> None:
    """A straight line under the boxes."""
    axes.plot([one[0], other[0]], [one[1], other[1]], color=colour, lw=width, zorder=2, solid_capstyle="round")


def arc(axes: Axes, left: float, right: float, y: float, depth: float, colour: str, width: float) -> None:
    """A bow below *y* from *left* to *right*."""
    import numpy as np

    turn = np.linspace(0, np.pi, 40)
    x = (left + right) / 2 - (right - left) / 2 * np.cos(turn)
    axes.plot(x, y - depth * np.sin(turn), color=colour, lw=width, zorder=2)


def note(
    axes: Axes, x: float, y: float, words: str, *, align: str = "center", bold: bool = False, size: float = 10.5
) -> None:
    """Text without a box, readable across lines."""
    weight = "bold" if bold else "normal"
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}
    axes.text(x, y, words, ha=align, va="center", fontsize=size, color=INK, fontweight=weight, zorder=5, bbox=behind)


def plain(axes: Axes, width: float, low: float, high: float) -> None:
    """No ticks and no frame, from 0 to *width* and *low* to *high*."""
    axes.set_xlim(-0.6, width + 0.6)
    axes.set_ylim(low, high)
    axes.axis("off")
