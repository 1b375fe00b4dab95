"""Memory as plots: what a tier holds at its peak, against its capacity, and what one card holds over the step.

Of a long curve each span of time is drawn as it was at its fullest moment, as in memory.png.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.report.headline import tier_label
from simulator.report.memory_chart import kind_colours, peak_moment
from simulator.report.plots import Part, Plot, drawn, stacked_bars
from simulator.report.tables import percent
from simulator.report.thinning import fullest, total_bytes
from simulator.units import human_bytes, human_time

if TYPE_CHECKING:
    from simulator.forecast.timeline import MemoryCurve, Timeline

_GB = 1e9
_SPANS = 450
_NEARLY_EMPTY = 0.02
_HEIGHT_PX = 340


def breakdown_plot(name: str, tier: str, held: Mapping[str, Any], *, of: str = "") -> Plot:
    """What *tier* holds at its peak: *held* is its entry of `memory` in the summary, *of* says whose."""
    kinds = {kind: size for kind, size in held["breakdown"].items() if size > 0}
    colours, capacity, peak = kind_colours(kinds), held["capacity_bytes"], held["peak_bytes"]
    parts = [Part(kind, colours[kind], [size / _GB], [human_bytes(size)]) for kind, size in kinds.items()]
    alt = f"{tier_label(tier)}{of} at its peak: {human_bytes(peak)} of {human_bytes(capacity)}, made of " + ", ".join(
        f"{kind} {human_bytes(size)}" for kind, size in kinds.items()
    )
    near = peak >= _NEARLY_EMPTY * capacity
    limit = _capacity_line({"x0": capacity / _GB, "x1": capacity / _GB, "y0": 0, "y1": 1, "yref": "paper"})
    axis = {"range": [0, 1.04 * max(capacity if near else peak, peak) / _GB]}
    shown = {"shapes": [limit]} if near else {}
    return stacked_bars(name, alt, [tier_label(tier)], parts, unit="GB", xaxis=axis, **shown)


def course_plot(curve: MemoryCurve, timeline: Timeline) -> Plot:
    """What the rank of *curve* holds over the step, stacked by kind."""
    total = total_bytes(curve)
    kept = fullest(curve.time_ns, total, _SPANS)
    end_s = max(float(curve.time_ns[-1]), float(timeline.end_ns.max(initial=0))) / 1e9
    x = drawn([*(curve.time_ns[kept] / 1e9).tolist(), end_s])
    held = {kind: values for kind, values in curve.bytes_by_kind.items() if values.any()}
    colours = kind_colours(held)
    data = [
        {
            "type": "scatter", "mode": "lines", "stackgroup": "held", "name": kind, "x": x,
            "y": drawn((np.append(values[kept], values[-1]) / _GB).tolist()),
            "line": {"shape": "hv", "width": 0, "color": colours[kind]},
            "fillcolor": colours[kind], "hovertemplate": "%{y:.4g} GB",
        }
        for kind, values in held.items()
    ]  # fmt: skip
    peak, capacity = float(total.max()), curve.capacity_bytes
    alt = (
        f"{tier_label(curve.tier)} of rank {curve.rank.rank} ({curve.rank.label}) over {human_time(end_s)}: at most "
        f"{human_bytes(peak)}, {percent(peak / capacity)} of {human_bytes(capacity)}, {peak_moment(curve, timeline)}."
    )
    near = peak >= _NEARLY_EMPTY * capacity
    limit = _capacity_line({"x0": 0, "x1": 1, "xref": "paper", "y0": capacity / _GB, "y1": capacity / _GB})
    top = 1.06 * max(capacity if near else peak, peak) / _GB
    layout = {
        "hovermode": "x unified",
        "xaxis": {"title": {"text": "seconds"}, "range": [0, end_s], "zeroline": False},
        "yaxis": {"title": {"text": "GB"}, "range": [0, top], "fixedrange": True, "zeroline": False},
        **({"shapes": [limit]} if near else {}),
    }
    return Plot(f"memory-over-time-{curve.tier}", alt, _HEIGHT_PX, data, layout)


def _capacity_line(where: Mapping[str, Any]) -> dict[str, Any]:
    upright = "yref" in where
    label = {
        "text": "capacity",
        "textposition": "middle" if upright else "start",
        "textangle": 0,
        "xanchor": "right" if upright else "left",
        "yanchor": "middle" if upright else "top",
        "font": {"size": 11},
    }
    return {"type": "line", "line": {"width": 1.5, "dash": "dash"}, "label": label, **where}
