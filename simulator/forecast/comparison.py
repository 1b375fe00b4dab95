"""Several scenarios, or one under several settings, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from simulator.documents import InvalidDocument
from simulator.forecast.forecast import Progress, silent, summarize
from simulator.forecast.reading import open_any_scenario, placing
from simulator.forecast.scenario import Scenario
from simulator.forecast.scenario_serving import ServingScenario
from simulator.forecast.serving.forecast import serve


def variants(names: Iterable[str], over: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """(scenario, overrides) of every scenario under every combination of *over*, texts such as "parallel.ep=8,16".

    Raise :exc:`ValueError` for a text that is not of that form.
    """
    axes = []
    for text in over:
        path, equals, values = text.partition("=")
        if not equals or not path or not all(values.split(",")):
            raise ValueError(f"--over {text}: expected path=value,value,..., for example parallel.ep=8,16")
        axes.append([f"{path}={value}" for value in values.split(",")])
    return [(name, combination) for name in names for combination in product(*axes)]


def compare(
    names: Iterable[str], over: Sequence[str], changes: Sequence[str], progress: Progress | None = None
) -> dict[str, Any]:
    """Forecast all variants: {rows: [{name, change, ...summary}]}, in the order given.

    Raise what reading a scenario raises.
    """
    say, wanted = progress or silent, variants(names, over)
    rows: list[dict[str, Any]] = []
    for number, (name, combination) in enumerate(wanted):
        say(" ".join((name, *combination)), number / len(wanted))
        document, folder = open_any_scenario(name, (*changes, *combination))
        scenario = document.content
        with placing(document):
            summary = summary_of(scenario, folder)
        if rows and is_serving(summary) != is_serving(rows[0]):
            message = "serves or trains, and the first one does the other; allowed: scenarios of one kind"
            raise InvalidDocument([document.problem("", message)])
        rows.append({"name": scenario.name, "change": " ".join(combination), **summary})
    return {"rows": rows}


def summary_of(scenario: Scenario | ServingScenario, folder: Path) -> dict[str, Any]:
    """The forecast of a scenario of either kind."""
    if isinstance(scenario, ServingScenario):
        return serve(scenario, folder).summary
    return summarize(scenario, folder)


def is_serving(summary: Mapping[str, Any]) -> bool:
    """Whether *summary* is of a scenario of serving."""
    return "step_time_s" not in summary
