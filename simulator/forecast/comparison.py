"""Several scenarios, or one under several settings, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from simulator.forecast.forecast import Progress, silent, summarize
from simulator.forecast.reading import open_scenario, placing


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
    say, rows, wanted = progress or silent, [], variants(names, over)
    for number, (name, combination) in enumerate(wanted):
        say(" ".join((name, *combination)), number / len(wanted))
        document, folder = open_scenario(name, (*changes, *combination))
        with placing(document):
            summary = summarize(document.content, folder)
        rows.append({"name": document.content.name, "change": " ".join(combination), **summary})
    return {"rows": rows}
