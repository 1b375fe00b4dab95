"""`rackcast validate`: how far forecasts lie from what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.bar import progress
from simulator.cli.guard import Answer, conclude
from simulator.cli.options import AsJson


def validate(
    cases: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[CASES]", help="Scenarios with a `measured` block, or folders of them. [default: shipped]"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast measured cases and show each figure beside its measurement."""
    conclude(lambda: _answer(cases or []), as_json)


def _answer(cases: list[Path]) -> Answer:
    from simulator.forecast import validation
    from simulator.report.validation_table import validation_table

    paths = validation.measured_cases(cases)
    with progress() as hear:
        comparisons = validation.validate(paths, hear)
    result = validation.as_json(comparisons)
    return Answer(result, lambda: validation_table(result))
