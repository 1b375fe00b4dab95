"""Forecasts beside measurements: every scenario with a `measured` block, and the error of each figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from simulator.documents import InvalidDocument, Problem
from simulator.forecast.comparison import summary_of
from simulator.forecast.forecast import Progress, silent
from simulator.forecast.reading import open_any_scenario, placing
from simulator.forecast.scenario_serving import ServingScenario
from simulator.shipped import shipped

METRICS: dict[str, Callable[[dict[str, Any]], float]] = {
    "step_time_s": lambda summary: float(summary["step_time_s"]["p50"]),
    "tokens_per_s_per_accelerator": lambda summary: float(summary["tokens_per_s_per_accelerator"]),
    "peak_allocated_bytes": lambda summary: float(summary["memory"]["hbm"]["allocated_bytes"]),
    "peak_reserved_bytes": lambda summary: float(summary["memory"]["hbm"]["reserved_bytes"]),
    "first_step_peak_allocated_bytes": lambda summary: float(
        summary["memory"]["hbm"]["first_step_peak_bytes"]
        - summary["memory"]["hbm"]["peak_bytes"]
        + summary["memory"]["hbm"]["allocated_bytes"]
    ),
    "held_allocated_bytes": lambda summary: float(summary["memory"]["hbm"]["held_bytes"]),
    "ttft_s": lambda summary: float(summary["ttft_s"]["mean"]),
    "ttft_p50_s": lambda summary: float(summary["ttft_s"]["p50"]),
    "tpot_s": lambda summary: float(summary["tpot_s"]["mean"]),
    "latency_s": lambda summary: float(summary["latency_s"]["mean"]),
    "output_tokens_per_s_per_accelerator": lambda summary: float(summary["output_tokens_per_s_per_accelerator"]),
    "prompt_tokens_per_s_per_accelerator": lambda summary: float(summary["prompt_tokens_per_s_per_accelerator"]),
}
"""How a forecast's summary answers each measured figure."""
WAITING = "unmeasured"
"""Folder below a folder of cases whose scenarios have no measurement yet."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measured figure and its forecast."""

    case: str
    metric: str
    measured: float
    predicted: float
    low: float | None = None
    high: float | None = None
    """10th and 90th percentile of the forecast, where it has an interval."""

    @property
    def error(self) -> float:
        """Relative error: positive where the forecast is too high."""
        return self.predicted / self.measured - 1


def measured_cases(places: Iterable[Path]) -> list[Path]:
    """The scenario files that *places* (files or folders, searched through) name; the shipped cases for none.

    What lies in a folder `unmeasured` waits for its run and is passed over, unless a place names it. Raise
    :exc:`InvalidDocument` for a place that does not exist or a folder without scenarios.
    """
    found: list[Path] = []
    problems = []
    for place in list(places) or [shipped("tests", "validation")]:
        below = (path for path in place.rglob("*.yaml") if WAITING not in path.relative_to(place).parts)
        files = sorted(below) if place.is_dir() else [place]
        if not files or not files[0].is_file():
            problems.append(Problem(str(place), None, "", "no such file, or a folder without scenarios (*.yaml)"))
        found += files
    if problems:
        raise InvalidDocument(problems)
    return found


def validate(cases: Iterable[Path], progress: Progress | None = None) -> list[Comparison]:
    """Forecast every case and compare. Raise what reading raises; a case without `measured` is a problem too."""
    say, comparisons, paths = progress or silent, [], list(cases)
    for number, path in enumerate(paths):
        say(path.stem, number / len(paths))
        document, folder = open_any_scenario(str(path))
        scenario = document.content
        measured = scenario.measured
        if measured is None:
            raise InvalidDocument([document.problem("measured", "missing; a case needs what a real run showed")])
        with placing(document):
            found = summary_of(scenario, folder)
        if "ttft_s" not in found and isinstance(scenario, ServingScenario):
            raise InvalidDocument([document.problem("serving", "does not fit, so there are no times to compare")])
        for metric in METRICS:
            value = getattr(measured, metric, None)
            if value is not None:
                comparisons.append(_compare(path.stem, metric, value, found))
    return comparisons


def as_json(comparisons: list[Comparison]) -> dict[str, Any]:
    """The keys of `rackcast validate --json`."""
    by_metric = {c.metric: [abs(d.error) for d in comparisons if d.metric == c.metric] for c in comparisons}
    return {
        "cases": [
            {"id": c.case, "metric": c.metric, "measured": c.measured, "predicted": c.predicted, "error": c.error}
            for c in comparisons
        ],
        "median_abs_error": {metric: median(errors) for metric, errors in by_metric.items()},
        "worst_abs_error": {metric: max(errors) for metric, errors in by_metric.items()},
    }


def _compare(case: str, metric: str, measured: float, summary: dict[str, Any]) -> Comparison:
    interval = summary["step_time_s"] if metric == "step_time_s" else {}
    predicted = METRICS[metric](summary)
    return Comparison(case, metric, measured, predicted, interval.get("p10"), interval.get("p90"))
