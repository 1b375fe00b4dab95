"""`rackcast run`: simulate one step and write down what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.bar import progress
from simulator.cli.guard import Answer, conclude, say
from simulator.cli.guesses import tell_guesses, tell_idle
from simulator.cli.options import AsJson, Changes, ScenarioName


def run(
    scenario: ScenarioName,
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for the files. [default: out/NAME]")
    ] = None,
    no_fold: Annotated[
        bool, typer.Option("--no-fold", help="Simulate every rank apart, as a check of folding.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate one step and say what limits it.

    Charts, a trace and the figures are written into the folder of --out.
    """
    conclude(lambda: _answer(scenario, changes or [], out, not no_fold), as_json)


def _answer(name: str, changes: list[str], out: Path | None, fold: bool) -> Answer:
    from simulator.forecast.reading import open_scenario, placing

    document, folder = open_scenario(name, changes)
    out = out or Path("out") / document.content.name
    _check_folder(out)
    from simulator.forecast.forecast import forecast
    from simulator.report import write_all
    from simulator.report.tables import summary_table

    with placing(document), progress() as hear:
        result = forecast(document.content, folder, fold=fold, progress=hear)
    tell_guesses(document.content, folder)
    tell_idle(document.content)
    for sentence in result.summary.get("swap", {}).get("overloads", ()):
        say(sentence)
    files = write_all(result, out)
    say(f"wrote {', '.join(sorted(file.name for file in files))} into {out}")
    return Answer(result.summary, lambda: summary_table(result.summary))


def _check_folder(out: Path) -> None:
    """Look before the simulation whether its files will have a place, so that its time is not lost."""
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"cannot write into {out}: {nearest} is a file")
