"""What one card's memory holds over the step, stacked by kind, against its capacity.

Drawn is the telling rank with the highest peak of each tier. Bytes hold from one point to the next, so the areas are
steps. Of a long curve each span of time is drawn as it was at its fullest moment, which the panel's title says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.report.headline import tier_label
from simulator.report.paper import FAINT, INK, SIZE_INCHES, legend, time_ticks, titles
from simulator.report.thinning import fullest, total_bytes
from simulator.units import human_bytes, human_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulator.forecast.timeline import MemoryCurve, Timeline

COLOURS = {
    "parameters": "#0072B2",
    "gradients": "#56B4E9",
    "optimizer": "#003F66",
    "saved activations": "#009E73",
    "gathered parameters": "#E69F00",
    "reduce buffers": "#C8B400",
    "communication buffers": "#D55E00",
    "logits": "#CC79A7",
    "workspace": "#B7C3CC",
    "context": "#5D6770",
    # A served model's.
    "weights": "#0072B2",
    "embedding and head": "#56B4E9",
    "caches": "#009E73",
    "activations": "#CC79A7",
}
_SPARE_COLOURS = ("#882255", "#44AA99", "#999933", "#AA4499")
_SPANS = 450
_NEARLY_EMPTY = 0.02
_GB = 1e9


def memory_chart(curves: Iterable[MemoryCurve], timeline: Timeline, summary: Mapping[str, Any]) -> Figure:
    """One panel per tier that holds anything. *timeline* tells what ran at the peak, *summary* the scenario's name."""
    from matplotlib.figure import Figure

    shown = peak_curves(curves)
    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    if not shown:
        titles(figure, "No memory in use", str(summary["scenario"]))
        return figure
    titles(figure, _answer(shown[0]), str(summary["scenario"]))
    colours = kind_colours(dict.fromkeys(kind for c in shown for kind, held in c.bytes_by_kind.items() if held.any()))
    legend(figure, [(colour, kind) for kind, colour in colours.items()])
    grid = figure.add_gridspec(len(shown), 1, left=0.065, right=0.985, top=0.84, bottom=0.06, hspace=0.32)
    for i, curve in enumerate(shown):
        made_of = summary.get("memory", {}).get(curve.tier, {}).get("made_of", ())
        _draw_tier(figure.add_subplot(grid[i, 0]), curve, timeline, colours, _largest_tensors(made_of))
    return figure


def peak_curves(curves: Iterable[MemoryCurve]) -> list[MemoryCurve]:
    """Of each tier with anything in it, the curve with the highest peak; tiers in order of appearance."""
    best: dict[str, MemoryCurve] = {}
    for curve in curves:
        if _peak_bytes(curve) > 0 and (curve.tier not in best or _peak_bytes(curve) > _peak_bytes(best[curve.tier])):
            best[curve.tier] = curve
    return list(best.values())


def _peak_bytes(curve: MemoryCurve) -> float:
    return float(total_bytes(curve).max(initial=0.0))


def _answer(curve: MemoryCurve) -> str:
    peak, capacity = human_bytes(_peak_bytes(curve)), human_bytes(curve.capacity_bytes)
    return f"{tier_label(curve.tier)} peak {peak} of {capacity}: {_room(curve)}"


def kind_colours(kinds: Iterable[str]) -> dict[str, str]:
    """A colour for each kind of tensor."""
    spare = iter(_SPARE_COLOURS)
    return {kind: COLOURS.get(kind) or next(spare, "#9AA0A6") for kind in kinds}


def _largest_tensors(made_of: Iterable[Mapping[str, Any]]) -> str:
    """What of a step's own tensors takes most of the peak: "... saved activations of gate, layers 0 to 15: 2 GB"."""
    one = next((one for one in made_of if one["phase"] != "resident"), None)
    if one is None:
        return ""
    first, last = one["first_layer"], one["last_layer"]
    layers = "" if first is None else f", layer {first}" if first == last else f", layers {first} to {last}"
    return f"\nmost of what the step itself holds: {one['kind']} of {one['task']}{layers}: {human_bytes(one['bytes'])}"


def _draw_tier(axes: Axes, curve: MemoryCurve, timeline: Timeline, colours: Mapping[str, str], tensors: str) -> None:
    total = total_bytes(curve)
    kept = fullest(curve.time_ns, total, _SPANS)
    x = curve.time_ns[kept] / 1e9
    end = max(float(x[-1]), float(timeline.end_ns.max(initial=0)) / 1e9)
    x = np.append(x, end)
    top = np.zeros(len(x))
    for kind, colour in colours.items():
        held = curve.bytes_by_kind.get(kind)
        if held is not None and held.any():
            bottom, top = top, top + np.append(held[kept], held[-1]) / _GB
            axes.fill_between(x, bottom, top, step="post", color=colour, lw=0, label=kind)
    axes.set_xlim(min(float(x[0]), float(timeline.start_ns.min(initial=0)) / 1e9), end)
    _draw_capacity(axes, curve)
    _mark_peak(axes, curve, timeline, total, tensors)
    span_s = (end - float(x[0])) / _SPANS
    thinned = f", each {human_time(span_s)} at its fullest" if len(kept) < len(total) else ""
    words = f"{tier_label(curve.tier)} of rank {curve.rank.rank} ({curve.rank.label}){thinned}"
    axes.set_title(words, loc="left", fontsize=10.5, color=INK)
    axes.set_ylabel("GB", color=INK, fontsize=9.5)
    axes.tick_params(axis="y", labelsize=8.5, labelcolor=INK, color=FAINT)
    axes.spines[["right", "top"]].set_visible(False)
    axes.spines["left"].set_color(FAINT)
    time_ticks(axes)


def _draw_capacity(axes: Axes, curve: MemoryCurve) -> None:
    capacity, peak = curve.capacity_bytes / _GB, _peak_bytes(curve) / _GB
    words = f"capacity {human_bytes(curve.capacity_bytes)}"
    if peak < _NEARLY_EMPTY * capacity:
        # Against its capacity it would be a line on the floor: show what it holds, and say what it could.
        axes.set_ylim(0, 1.35 * peak)
        axes.text(1, 1.01, words, transform=axes.transAxes, ha="right", va="bottom", fontsize=9.5, color=INK)
        return
    axes.set_ylim(0, 1.25 * max(capacity, peak))
    axes.axhline(capacity, color=INK, lw=1.3, ls=(0, (5, 2)), label="capacity")
    # On the side that the peak and its words leave free.
    left, right = axes.get_xlim()
    late = curve.time_ns[int(total_bytes(curve).argmax())] / 1e9 > (left + right) / 2
    axes.annotate(
        words, (0.004 if late else 0.996, capacity), (0, 4), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="left" if late else "right", va="bottom", fontsize=9.5, color=INK,
    )  # fmt: skip


def _mark_peak(axes: Axes, curve: MemoryCurve, timeline: Timeline, total: np.ndarray, tensors: str) -> None:
    """The peak with its value, its moment and what made it; an arrow for the room between it and the capacity."""
    i = int(total.argmax())
    moment, peak, ceiling = float(curve.time_ns[i]) / 1e9, float(total[i]) / _GB, axes.get_ylim()[1]
    largest = max(curve.bytes_by_kind, key=lambda kind: float(curve.bytes_by_kind[kind][i]))
    words = (
        f"peak {human_bytes(float(total[i]))} {peak_moment(curve, timeline)}"
        f"\nlargest part {largest}: {human_bytes(float(curve.bytes_by_kind[largest][i]))}{tensors}"
    )
    left, right = axes.get_xlim()
    late = moment > (left + right) / 2
    axes.plot([moment, moment], [peak, ceiling], color=INK, lw=0.8)
    axes.plot([moment], [peak], marker="o", ms=7, mfc="white", mec=INK, mew=1.5, clip_on=False)
    beside: dict[str, Any] = {"textcoords": "offset points", "ha": "right" if late else "left", "color": INK}
    shift = -8 if late else 8
    axes.annotate(words, (moment, ceiling), (shift, -2), va="top", fontsize=10.5, **beside)
    capacity = curve.capacity_bytes / _GB
    if abs(capacity - peak) > 0.04 * ceiling and capacity < ceiling:
        axes.annotate(
            "",
            (moment, capacity),
            (moment, peak),
            arrowprops={"arrowstyle": "<->", "color": INK, "lw": 1.2, "shrinkA": 5, "shrinkB": 1},
        )
        axes.annotate(
            _room(curve),
            (moment, (peak + capacity) / 2),
            (shift, 0),
            va="center",
            fontsize=10.5,
            fontweight="bold",
            **beside,
        )


def _room(curve: MemoryCurve) -> str:
    room = curve.capacity_bytes - _peak_bytes(curve)
    return f"{human_bytes(room)} free" if room >= 0 else f"{human_bytes(-room)} too much"


def peak_moment(curve: MemoryCurve, timeline: Timeline) -> str:
    """When *curve* is highest, and with what: "at 1.2 s, in backward of layer 12 (experts)"."""
    moment_ns = int(curve.time_ns[int(total_bytes(curve).argmax())])
    return f"at {human_time(moment_ns / 1e9)}{_what_ran(timeline, curve, moment_ns)}"


def _what_ran(timeline: Timeline, curve: MemoryCurve, moment_ns: int) -> str:
    """What the compute stream had started last at *moment_ns*, as ", in backward of layer 12 (experts)".

    Where the rank's own tasks are not in the timeline, the first telling rank's tell about where the step was.
    """
    column = next((i for i, rank in enumerate(timeline.ranks) if rank.rank == curve.rank.rank), None)
    start_ns = timeline.start_ns[:, column or 0]
    on_compute = np.array([stream == "compute" for stream in timeline.stream], bool)
    started = np.flatnonzero(on_compute & (start_ns <= moment_ns))
    if not len(started):
        return ""
    task = int(started[np.lexsort((started, start_ns[started]))[-1]])
    layer = f" of layer {timeline.layer[task]}" if timeline.layer[task] >= 0 else ""
    if column is None:
        return f", around {timeline.phase[task]}{layer}"
    return f", in {timeline.phase[task]}{layer} ({timeline.name[task]})"
