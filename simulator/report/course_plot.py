"""A serving loop over time, to zoom into: sequences, room for caches and tokens a second over one axis of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.report.course_series import course_series
from simulator.report.plots import Plot, drawn
from simulator.report.serving_chart import CACHE, OUTPUT, PROMPT, RUNNING, WAITING, tokens_title
from simulator.units import human_bytes, human_time, plain_number

if TYPE_CHECKING:
    from simulator.forecast.serving.loop import Course

_DOMAINS = {"y": (0.70, 0.96), "y2": (0.35, 0.61), "y3": (0.0, 0.26)}
_HEIGHT_PX = 560


def course_plot(course: Course, summary: Mapping[str, Any]) -> Plot:
    """The plot of *course*, whose forecast is *summary*."""
    found = course_series(course)
    edges, room_bytes = drawn(found.edges_s.tolist()), summary["memory"]["hbm"]["cache"]["room_bytes"]

    def line(label: str, colour: str, axis: str, values: np.ndarray, **more: Any) -> dict[str, Any]:
        y = drawn([*values.tolist(), values[-1]])
        shape = {"color": colour, "width": 1.6, "shape": "hv"}
        hover = {"hovertemplate": "%{y:,.4~r}"}
        return {"type": "scatter", "mode": "lines", "name": label, "x": edges, "y": y, "yaxis": axis, "line": shape,
                **hover, **more}  # fmt: skip

    data = [
        line("running", RUNNING, "y", found.running),
        line("waiting", WAITING, "y", found.waiting),
        line("room for caches in use", CACHE, "y2", found.used_bytes / 1e9, fill="tozeroy"),
        line("tokens of answers", OUTPUT, "y3", found.output_tokens_per_s),
        line("tokens of prompts", PROMPT, "y3", found.prompt_tokens_per_s),
    ]
    running, waiting, rate = (
        plain_number(float(series.max()), 4) for series in (found.running, found.waiting, found.output_tokens_per_s)
    )
    alt = (
        f"The loop over {human_time(float(found.edges_s[-1]))}: at most {running} sequences run and {waiting} wait, "
        f"caches take at most {human_bytes(float(found.used_bytes.max()))} of {human_bytes(room_bytes)} on the fullest "
        f"accelerator, and answers come at up to {rate} tokens a second."
    )
    return Plot("course", alt, _HEIGHT_PX, data, _layout(summary, room_bytes))


def _layout(summary: Mapping[str, Any], room_bytes: float) -> dict[str, Any]:
    titles = ("sequences", "caches on the fullest accelerator, GB; dashed: room", tokens_title(summary))
    room = {"x0": 0, "x1": 1, "xref": "paper", "yref": "y2", "y0": room_bytes / 1e9, "y1": room_bytes / 1e9}
    axes = {
        f"yaxis{axis[1:]}": {"domain": domain, "rangemode": "tozero", "fixedrange": True, "zeroline": False}
        for axis, domain in _DOMAINS.items()
    }
    heads = [
        {"text": title, "x": 0, "xref": "paper", "xanchor": "left", "y": top, "yref": "paper", "yanchor": "bottom",
         "showarrow": False}
        for title, (_, top) in zip(titles, _DOMAINS.values(), strict=True)
    ]  # fmt: skip
    return {
        "hovermode": "x unified",
        "xaxis": {"title": {"text": "seconds"}, "anchor": "y3", "zeroline": False, "rangemode": "tozero"},
        "shapes": [{"type": "line", "line": {"width": 1.5, "dash": "dash"}, **room}],
        "annotations": heads,
        **axes,
    }
