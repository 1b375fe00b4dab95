"""Interactive plots as plotly.js takes them: plain data that a page carries, and bars of parts of a whole.

Colours of words, axes and backgrounds are the page's, so that a plot is dark where the page is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_BAR_PX, _AROUND_BARS_PX = 42, 40
_DIGITS = 6
"""Of a figure that is drawn: a hair's breadth of any screen. Tables have them whole."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of a page."""

    name: str
    """Its id in the page."""
    alt: str
    """What it shows, for those who do not see it."""
    height_px: int
    data: Sequence[Mapping[str, Any]]
    """Traces of plotly.js."""
    layout: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What the page's script draws from, where plotly.js alone would not do."""

    @property
    def told(self) -> dict[str, Any]:
        """What the page's script reads."""
        return {"data": self.data, "layout": {**self.layout, "height": self.height_px}, **self.extra}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar."""

    label: str
    colour: str
    values: Sequence[float]
    """One for each bar."""
    words: Sequence[str]
    """What each value is, for people."""


def stacked_bars(
    name: str, alt: str, bars: Sequence[str], parts: Iterable[Part], *, unit: str = "s", **layout: Any
) -> Plot:
    """Horizontal *bars*, first at the top, each made of *parts* from left to right, in *unit*."""
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part.label,
            "y": list(bars),
            "x": drawn(part.values),
            "marker": {"color": part.colour},
            "text": list(part.words),
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "hovertemplate": "%{y}: " * (len(bars) > 1) + f"{part.label} %{{text}}<extra></extra>",
        }
        for part in parts
    ]
    x = {"ticksuffix": f" {unit}", "showgrid": False, "fixedrange": True, "zeroline": False}
    y = {"autorange": "reversed", "ticks": "", "showticklabels": len(bars) > 1, "fixedrange": True}
    # Named and explained in the table below it, whose swatches are its legend.
    whole = {
        "showlegend": False,
        "barmode": "stack",
        "bargap": 0.25,
        **layout,
        "xaxis": x | layout.get("xaxis", {}),
        "yaxis": y,
    }
    return Plot(name, alt, _AROUND_BARS_PX + _BAR_PX * len(bars), data, whole)


def drawn(values: Iterable[float]) -> list[float]:
    """*values* with as many digits as can be seen."""
    return [float(f"{value:.{_DIGITS}g}") for value in values]
