"""`rackcast compare`: scenarios or settings side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.cli.bar import progress
from simulator.cli.guard import Answer, conclude, say
from simulator.cli.options import AsJson, Changes


def compare(
    scenarios: Annotated[list[str], typer.Argument(metavar="SCENARIO...", help="Scenarios, by path or shipped name.")],
    over: Annotated[
        list[str] | None,
        typer.Option("--over", metavar="PATH=A,B,...", help="Run each scenario with each of these values. Repeatable."),
    ] = None,
    changes: Changes = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw them.")] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate several scenarios, or one under several settings, and show them side by side."""
    conclude(lambda: _answer(scenarios, over or [], changes or [], png), as_json)


def _answer(scenarios: list[str], over: list[str], changes: list[str], png: Path | None) -> Answer:
    from simulator.documents import InvalidDocument, Problem
    from simulator.forecast import comparison
    from simulator.report.comparison_table import comparison_table
    from simulator.report.serving_comparison import serving_comparison

    try:
        comparison.variants(scenarios, over)
    except ValueError as error:
        raise InvalidDocument([Problem("", None, "", str(error))]) from None
    with progress() as hear:
        result = comparison.compare(scenarios, over, changes, hear)
    if png is not None:
        _draw(result, png)
    serves = comparison.is_serving(result["rows"][0])
    return Answer(result, lambda: serving_comparison(result) if serves else comparison_table(result))


def _draw(result: dict[str, Any], png: Path) -> None:
    from simulator.forecast.comparison import is_serving
    from simulator.report.comparison_chart import comparison_chart
    from simulator.report.files import folder, replacing
    from simulator.report.paper import write_png
    from simulator.report.series_chart import series, series_chart
    from simulator.report.serving_comparison_chart import serving_comparison_chart

    if is_serving(result["rows"][0]):
        chart = serving_comparison_chart(result)
    else:
        lines = series(result)
        chart = series_chart(lines) if lines else comparison_chart(result)
    folder(png.parent)
    with replacing(png) as file:
        write_png(chart, file)
    say(f"wrote {png}")
