"""Who is hot in a routing trace: every expert of every layer, the busiest rank of each layer, and the load per rank.

Colour is popularity over the layer's mean on a logarithmic scale: white is average, red is hot, blue is cold. Ranks
hold experts contiguously.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.report.paper import FAINT, INK, SIZE_INCHES, titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulator.routing.table import RoutingTable

_HOT, _WIDE, _LINE = "#D55E00", "#F0C9A8", "#0072B2"
_COLOUR_RANGE = 8.0
"""Popularity over the mean at which colour ends, and its reciprocal at the other end."""
_MANY_RANKS = 64


def routing_chart(table: RoutingTable, ep: int) -> Figure:
    """*table* on *ep* ranks. Raise :exc:`ValueError` when *ep* does not divide the experts."""
    from matplotlib.figure import Figure

    load = _over_mean(table.rank_load(ep))
    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    answer = (
        f"The busiest of {ep} ranks gets {load.max(axis=1).mean():.2f} x the mean" if ep > 1 else "One rank holds all"
    )
    titles(figure, answer, table.name)
    heat, colours = figure.add_axes((0.055, 0.36, 0.655, 0.53)), figure.add_axes((0.055, 0.925, 0.16, 0.012))
    _draw_heat(heat, colours, table, ep)
    beside = figure.add_axes((0.735, 0.36, 0.25, 0.53))
    _draw_layers(beside, table, load)
    _draw_ranks(figure.add_axes((0.055, 0.075, 0.93, 0.185)), load)
    return figure


def _draw_heat(axes: Axes, colours: Axes, table: RoutingTable, ep: int) -> None:
    from matplotlib.colors import LogNorm

    warmth = np.maximum(table.popularity * table.experts, 1 / _COLOUR_RANGE)
    norm = LogNorm(1 / _COLOUR_RANGE, _COLOUR_RANGE)
    extent = (-0.5, table.experts - 0.5, table.layers - 0.5, -0.5)
    image = axes.imshow(warmth, cmap="RdBu_r", norm=norm, aspect="auto", interpolation="nearest", extent=extent)
    if 1 < ep <= _MANY_RANKS and ep < table.experts:
        axes.vlines(np.arange(1, ep) * table.experts / ep - 0.5, *axes.get_ylim(), color=INK, lw=0.4, alpha=0.35)
    axes.set_title("popularity of each expert, lines between ranks", loc="right", fontsize=10.5, color=INK)
    axes.set_xlabel("expert", fontsize=9.5, color=INK, labelpad=1)
    _layer_axis(axes, table)
    bar = axes.figure.colorbar(image, cax=colours, orientation="horizontal", extend="both")
    bar.set_ticks([1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8], labels=["1/8", "1/4", "1/2", "mean", "x2", "x4", "x8"])
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=7.5, length=2, pad=1, color=FAINT, labelcolor=INK)
    bar.outline.set_linewidth(0.4)


def _draw_layers(axes: Axes, table: RoutingTable, load: np.ndarray) -> None:
    at = np.arange(table.layers)
    axes.plot(table.expert_max_over_mean(), at, color=FAINT, lw=1, marker=".", ms=3)
    axes.plot(load.max(axis=1), at, color=_HOT, lw=1.6, marker=".", ms=4)
    axes.set_ylim(table.layers - 0.5, -0.5)
    axes.set_xlim(left=1)
    _name_busiest(axes, load, table)
    axes.set_title("x mean: ", loc="left", fontsize=10.5, color=INK)
    axes.text(0.2, 1.022, "busiest rank", transform=axes.transAxes, fontsize=10.5, color=_HOT)
    axes.text(0.58, 1.022, "busiest expert", transform=axes.transAxes, fontsize=10.5, color=FAINT)
    axes.set_yticks([])
    axes.grid(axis="x", color=FAINT, lw=0.3, alpha=0.5)
    _plain(axes)


def _name_busiest(axes: Axes, load: np.ndarray, table: RoutingTable) -> None:
    """The rank and the expert with the most of any layer, each beside its point, on the side that has room."""
    for per_place, word, colour in ((_over_mean(table.counts), "expert", FAINT), (load, "rank", _HOT)):
        layer, place = np.unravel_index(per_place.argmax(), per_place.shape)
        value = float(per_place[layer, place])
        crowded = value > 0.6 * axes.get_xlim()[1]
        axes.annotate(
            f"{word} {place}: {value:.1f}", (value, float(layer)), xytext=(-6 if crowded else 6, 0),
            textcoords="offset points", ha="right" if crowded else "left", va="center", fontsize=8.5, color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip


def _over_mean(load: np.ndarray) -> np.ndarray:
    return np.asarray(load / load.mean(axis=1, keepdims=True))


def _draw_ranks(axes: Axes, load: np.ndarray) -> None:
    from matplotlib.ticker import MaxNLocator

    ranks = np.arange(load.shape[1])
    axes.bar(ranks, load.max(axis=0), color=_WIDE, width=0.9)
    axes.bar(ranks, load.mean(axis=0), color=_HOT, width=0.9)
    axes.axhline(1, color=INK, lw=0.8, ls=(0, (5, 2)))
    axes.set_xlim(-0.6, len(ranks) - 0.4)
    axes.set_title("load per rank: mean over layers, pale its worst layer, dashed an even share", loc="left",
                   fontsize=10.5, color=INK)  # fmt: skip
    axes.set_xlabel("rank", fontsize=9.5, color=INK, labelpad=1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _plain(axes)


def _layer_axis(axes: Axes, table: RoutingTable) -> None:
    """Layers by their number in the recorded model, where that is known."""
    numbers = table.recorded_layers or tuple(range(table.layers))
    step = max(1, -(-table.layers // 16))
    axes.set_yticks(np.arange(0, table.layers, step), [str(number) for number in numbers[::step]])
    axes.set_ylabel("layer" if table.recorded_layers else "MoE layer", fontsize=9.5, color=INK)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.tick_params(labelsize=8.5, labelcolor=INK, color=FAINT)
    axes.spines[["right", "top"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
