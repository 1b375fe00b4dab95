"""A picture of a topology: one host with its PCIe tree and scale-up links, and the switches between hosts.

Fabrics that are given as dimensions are drawn as dimensions. Where there are more parts than a slide can show, the
first of each kind stand for all and the picture says how many there are.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.paper import FAINT, INK, SIZE_INCHES, legend, write_png
from simulator.report.topology_table import headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulator.hardware.topology import Topology


def fabric_png(topology: Topology, found: Mapping[str, Any], name: str) -> bytes:
    """The picture as a PNG; *found* is what `describe` says of *topology*, *name* the dump's."""
    buffer = io.BytesIO()
    write_png(fabric_chart(topology, found, name), buffer)
    return buffer.getvalue()


def fabric_chart(topology: Topology, found: Mapping[str, Any], name: str) -> Figure:
    """One panel, or two where the dump tells of a host and of the switches between hosts."""
    from matplotlib.figure import Figure

    from simulator.report.fabric_picture import draw_fabric
    from simulator.report.host_picture import draw_host
    from simulator.report.layer_picture import draw_layers

    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    line = headline(found)
    figure.text(0.015, 0.96, line[:1].upper() + line[1:], fontsize=19, fontweight="bold", color=INK, va="center")
    # Below the answer: both may be long.
    figure.text(0.985, 0.915, f"{name}, {topology.format}", fontsize=11, color=FAINT, va="center", ha="right")
    between = any(link.kind == "cable" for link in topology.links) and not topology.dimensions
    inside = bool(topology.of("accelerator")) and not topology.dimensions
    grid = figure.add_gridspec(
        between + inside or 1, 1, left=0.02, right=0.98, top=0.88, bottom=0.02, hspace=0.08,
        height_ratios=[1, 1.15] if between and inside else [1],
    )  # fmt: skip
    entries: list[tuple[str, str]] = []
    if topology.dimensions:
        entries += draw_layers(figure.add_subplot(grid[0, 0]), topology)
    if between:
        entries += draw_fabric(figure.add_subplot(grid[0, 0]), topology)
    if inside:
        entries += draw_host(figure.add_subplot(grid[-1, 0]), topology)
    legend(figure, list(dict.fromkeys(entries)))
    return figure
