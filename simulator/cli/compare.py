"""`rackcast compare`: scenarios or settings side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.bar import progress
from simulator.cli.guard import Answer, conclude
from simulator.cli.options import AsJson, Changes


def compare(
    scenarios: Annotated[list[str], typer.Argument(metavar="SCENARIO...", help="Scenarios, by path or shipped name.")],
    over: Annotated[
        list[str] | None,
        typer.Option("--over", metavar="PATH=A,B,...", help="Run each scenario with each of these values. Repeatable."),
    ] = None,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Simulate several scenarios, or one under several settings, and show them side by side."""
    conclude(lambda: _answer(scenarios, over or [], changes or []), as_json)


def _answer(scenarios: list[str], over: list[str], changes: list[str]) -> Answer:
    from simulator.documents import InvalidDocument, Problem
    from simulator.forecast import comparison
    from simulator.report.comparison_table import comparison_table

    try:
        comparison.variants(scenarios, over)
    except ValueError as error:
        raise InvalidDocument([Problem("", None, "", str(error))]) from None
    with progress() as hear:
        result = comparison.compare(scenarios, over, changes, hear)
    return Answer(result, lambda: comparison_table(result))
