"""A forecast of serving as one page: latencies, what an engine's time goes to, the loop, memory, how sure it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simulator.report.course_plot import course_plot
from simulator.report.memory_page import MemoryOfTier, tiers
from simulator.report.page import page
from simulator.report.plots import Part, Plot, stacked_bars
from simulator.report.provenance_plot import GRADE_COLOURS, provenance_plot
from simulator.report.serving_iteration_chart import NAMES
from simulator.report.serving_table import PARTS, answer, facts, shortage
from simulator.report.tables import percent
from simulator.units import human_time

if TYPE_CHECKING:
    from simulator.forecast.serving.forecast import ServingForecast
    from simulator.report.origin import Origin

_TILES = frozenset({"first token", "further tokens", "whole request", "cost"})
"""Facts that the page shows in large letters."""


def serving_page(forecast: ServingForecast, origin: Origin) -> str:
    """The page of *forecast*, which came from *origin*; short where no request fits."""
    summary, course = forecast.summary, forecast.course
    common = {
        "summary": summary,
        "origin": origin,
        "memory": _memory(summary),
        "questions": list(_questions(summary, origin)),
    }
    if course is None:
        return page("shortage.html", answer=shortage(summary), **common)
    return page(
        "serving.html",
        answer=answer(summary),
        facts=[fact for fact in facts(summary) if fact[0] not in _TILES],
        time_plot=_time_plot(summary),
        time=_time_rows(summary["time"]),
        prefill_time=_time_rows(summary["prefill"]["time"]) if "prefill" in summary else [],
        iterations=[(NAMES[kind], one) for kind, one in summary["iteration_s"].items()],
        iteration_plot=_iteration_plot(summary),
        course=course_plot(course, summary),
        provenance_plot=provenance_plot(summary["provenance"]),
        grade_colours=GRADE_COLOURS,
        **common,
    )


def _memory(summary: Mapping[str, Any]) -> list[MemoryOfTier]:
    apart = tiers(summary.get("prefill_memory", {}), of=" where prompts are computed")
    return [*tiers(summary["memory"]), *apart]


def _time_rows(time: Mapping[str, float]) -> list[tuple[str, str, float, str]]:
    """Key, words, seconds and colour of what an engine's *time* goes to, largest first."""
    parts = sorted(time.items(), key=lambda item: -item[1])
    return [(key, *_named(key, seconds)) for key, seconds in parts if seconds > 0]


def _named(key: str, seconds: float) -> tuple[str, float, str]:
    words, colour = PARTS[key]
    return words, seconds, colour


def _time_plot(summary: Mapping[str, Any]) -> Plot:
    whole = sum(summary["time"].values())
    parts = [
        Part(words, colour, [seconds], [f"{human_time(seconds)}, {percent(seconds / whole)}"])
        for _, words, seconds, colour in _time_rows(summary["time"])
    ]
    alt = f"{human_time(whole)} of an engine: " + ", ".join(f"{part.label} {part.words[0]}" for part in parts)
    return stacked_bars("time", alt, ["engine"], parts)


def _iteration_plot(summary: Mapping[str, Any]) -> Plot:
    """A bar for the mean iteration that only decodes, and one for the mean one with prompts."""
    kinds = summary["iteration_s"]
    names = [NAMES[kind] for kind in kinds]
    parts = []
    for key, (words, colour) in PARTS.items():
        seconds = [float(one["parts"].get(key, 0.0)) for one in kinds.values()]
        if any(seconds):
            parts.append(Part(words, colour, [1e3 * s for s in seconds], [human_time(s) for s in seconds]))
    alt = "Mean iterations: " + ", ".join(
        f"{name} {human_time(one['p50'])}" for name, one in zip(names, kinds.values(), strict=True)
    )
    return stacked_bars("iterations", alt, names, parts, unit="ms")


def _questions(summary: Mapping[str, Any], origin: Origin) -> Iterator[tuple[str, str]]:
    """What to ask next, and how."""
    if not summary["fits"]:
        yield "Which changes make it fit?", origin.asking("fit")
    yield "What does another setting change?", f"{origin.asking('compare')} --over PATH=A,B"
