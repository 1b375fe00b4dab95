"""What prices are based on, as a bar: shares of the time."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.report.plots import Part, Plot, stacked_bars
from simulator.report.tables import percent, provenance

GRADE_COLOURS = {"measured": "#009E73", "scaled": "#56B4E9", "datasheet": "#E69F00", "assumed": "#D55E00"}


def provenance_plot(weights: Mapping[str, float]) -> Plot:
    """The bar of *weights*, the key "provenance" of the summary."""
    total = sum(weights.values()) or 1.0
    parts = [
        Part(grade, colour, [100 * weights[grade] / total], [percent(weights[grade] / total)])
        for grade, colour in GRADE_COLOURS.items()
        if weights.get(grade)
    ]
    axis = {"range": [0, 100], "showticklabels": False, "ticks": ""}
    return stacked_bars("provenance", f"Shares of the time: {provenance(weights)}", ["time"], parts, xaxis=axis)
