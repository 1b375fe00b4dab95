"""A fabric of dimensions: one row for each, whose boxes are the groups of the row below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.hardware.topology import Dimension, Topology
from simulator.report.shapes import COLOURS, arc, box, line, note, plain
from simulator.units import human_rate, human_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_BOXES = 16
_WIDTH = 16.0
_ROW = 2.4


def draw_layers(axes: Axes, topology: Topology) -> list[tuple[str, str]]:
    """Draw the dimensions of *topology*, innermost at the bottom; return the legend's entries."""
    plain(axes, _WIDTH, -1.2, _ROW * len(topology.dimensions) - 0.6)
    inside = 1
    for height, layer in enumerate(topology.dimensions):
        _layer(axes, layer, height, inside)
        inside *= layer.size
    return [(COLOURS["accelerator"], "accelerator"), (COLOURS["host"], "group"), (COLOURS["switch"], "link, switch")]


def _layer(axes: Axes, layer: Dimension, height: int, inside: int) -> None:
    y = _ROW * height
    shown = min(layer.size, _MOST_BOXES)
    step = min(_WIDTH / shown, 2.0)
    xs = [step * (i + 0.5) for i in range(shown)]
    for i, x in enumerate(xs):
        last = i == shown - 1 and layer.size > shown
        words = "..." if last else str(i) if inside == 1 else f"group of {inside}" if step > 1.5 else f"{inside}"
        box(axes, x, y, 0.85 * step, 0.55, "accelerator" if inside == 1 else "host", words, 8.5)
    green = COLOURS["switch"]
    if layer.shape == "switch":
        for x in xs:
            line(axes, (x, y - 0.27), (x, y - 0.85), green, 2.0)
        box(axes, (xs[0] + xs[-1]) / 2, y - 0.85, max(xs[-1] - xs[0] + 0.85 * step, 1.6), 0.32, "switch", "switch", 8.5)
    else:
        pairs = [
            (i, j)
            for i in range(shown)
            for j in range(i + 1, shown)
            if layer.shape == "mesh" or j - i in {1, shown - 1}
        ]
        for i, j in pairs:
            arc(axes, xs[i], xs[j], y - 0.27, 0.25 + 0.45 * (j - i) / max(shown - 1, 1), green, 1.3)
    rate = human_rate(layer.bandwidth_bytes_per_s) + " a link" if layer.bandwidth_bytes_per_s else "rate not told"
    late = f", {human_time(layer.latency_s)}" if layer.latency_s else ""
    over = f", {layer.oversubscription:.3g}:1" if layer.oversubscription > 1 else ""
    note(
        axes,
        0,
        y + 0.55,
        f"dimension {height + 1}: {layer.shape} of {layer.size}, {rate}{late}{over}",
        align="left",
        bold=True,
    )
