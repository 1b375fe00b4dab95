"""A forecast of training as one page: the answer, what time and memory go to, a timeline, how sure it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.exposure import Exposure, exposures
from simulator.report.headline import headline, left_out, time_colour, time_label
from simulator.report.kinds import group_of, stream_label
from simulator.report.memory_chart import peak_curves
from simulator.report.memory_page import tiers
from simulator.report.memory_plot import course_plot
from simulator.report.page import page
from simulator.report.plots import Part, Plot, stacked_bars
from simulator.report.provenance_plot import GRADE_COLOURS, provenance_plot
from simulator.report.tables import facts, main_kinds, percent
from simulator.report.timeline_plot import timeline_plot
from simulator.units import human_time

if TYPE_CHECKING:
    from simulator.forecast.forecast import Forecast
    from simulator.report.origin import Origin

_TILES = frozenset({"step time", "throughput", "MFU", "cost"})
"""Facts that the page shows in large letters."""
_HIDDEN, _EXPOSED = "#56B4E9", "#D55E00"


def training_page(forecast: Forecast, origin: Origin) -> str:
    """The page of *forecast*, which came from *origin*."""
    summary, timeline = forecast.summary, forecast.timeline
    found = exposures(timeline, 0)
    return page(
        "training.html",
        summary=summary,
        origin=origin,
        answer=headline(summary),
        facts=[fact for fact in facts(summary) if fact[0] not in _TILES],
        time_plot=_time_plot(summary),
        time=list(_time_rows(summary)),
        exposures=[(stream_label(one.stream), one) for one in found],
        exposure_plot=_exposure_plot(found),
        hidden_colour=_HIDDEN,
        exposed_colour=_EXPOSED,
        rank=timeline.ranks[0],
        missing=left_out(summary),
        timeline=timeline_plot(timeline, summary),
        memory=tiers(summary["memory"]),
        memory_courses=[course_plot(curve, timeline) for curve in peak_curves(forecast.memory)],
        provenance_plot=provenance_plot(summary["provenance"]),
        grade_colours=GRADE_COLOURS,
        questions=list(_questions(summary, origin)),
    )


def _parts(summary: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Keys and seconds of what a step consists of, largest first."""
    return sorted(((key, value) for key, value in summary["time"].items() if value > 0), key=lambda item: -item[1])


def _time_plot(summary: Mapping[str, Any]) -> Plot:
    step_s = summary["step_time_s"]["p50"]
    parts = [
        Part(time_label(key), time_colour(key), [value], [f"{human_time(value)}, {percent(value / step_s)}"])
        for key, value in _parts(summary)
    ]  # fmt: skip
    alt = f"A step of {human_time(step_s)}: " + ", ".join(f"{part.label} {part.words[0]}" for part in parts)
    return stacked_bars("time", alt, ["step"], parts)


def _time_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, float, str, bool]]:
    """Key, words, seconds and colour of each part of the step, and whether it is a part of the one above."""
    for key, value in _parts(summary):
        yield key, time_label(key), value, time_colour(key), False
        if key == "compute_s":
            for kind, seconds in main_kinds(summary.get("compute", {}), value):
                yield kind, kind.replace("_", " "), seconds, group_of(kind).colour, True


def _exposure_plot(found: list[Exposure]) -> Plot | None:
    if not found:
        return None
    names = [stream_label(one.stream) for one in found]
    parts = [
        Part(label, colour, seconds, [human_time(value) for value in seconds])
        for label, colour, seconds in (
            ("hidden behind computation", _HIDDEN, [one.hidden_s for one in found]),
            ("exposed", _EXPOSED, [one.exposed_s for one in found]),
        )
    ]
    alt = "Hidden and exposed time by stream: " + "; ".join(
        f"{name} {human_time(one.hidden_s)} hidden, {human_time(one.exposed_s)} exposed"
        for name, one in zip(names, found, strict=True)
    )
    return stacked_bars("exposure", alt, names, parts)


def _questions(summary: Mapping[str, Any], origin: Origin) -> Iterator[tuple[str, str]]:
    """What to ask next, and how."""
    if not summary["fits"]:
        yield "Which changes make it fit, cheapest token first?", origin.asking("fit")
    yield "Which split of these accelerators runs this job best?", origin.asking("plan")
    yield "What does another setting change?", f"{origin.asking('compare')} --over PATH=A,B"
