"""`rackcast run`: simulate one step and write down what happened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.bar import progress
from simulator.cli.guard import Answer, conclude, say
from simulator.cli.guesses import tell_guesses, tell_idle
from simulator.cli.options import AsJson, Changes, ScenarioName
from simulator.forecast.uncollected import uncollected

if TYPE_CHECKING:
    from simulator.forecast.scenario import Scenario
    from simulator.forecast.scenario_serving import ServingScenario
    from simulator.report.origin import Origin


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
    """Simulate one step of training, or requests that are served, and say what limits it.

    A report to forward, charts, a trace and the figures are written into the folder of --out.
    """
    conclude(lambda: _answer(scenario, changes or [], out, not no_fold), as_json)


def _answer(name: str, changes: list[str], out: Path | None, fold: bool) -> Answer:
    from simulator.documents import dumped
    from simulator.forecast.errors import Refused
    from simulator.forecast.reading import open_any_scenario, placing
    from simulator.forecast.scenario_serving import ServingScenario
    from simulator.report.origin import Origin
    from simulator.version import __version__

    document, folder = open_any_scenario(name, changes)
    scenario = document.content
    out = out or Path("out") / scenario.name
    _check_folder(out)
    written = dumped(scenario.model_dump(mode="json", exclude_unset=True))
    origin = Origin(name, changes, written, __version__, () if fold else ("--no-fold",))
    with placing(document):
        if isinstance(scenario, ServingScenario):
            if not fold:
                raise Refused(["serving: --no-fold is a check of how ranks that train are folded; leave it out"])
            return _serving(scenario, folder, out, origin)
        return _training(scenario, folder, out, fold, origin)


@uncollected()
def _training(scenario: Scenario, folder: Path, out: Path, fold: bool, origin: Origin) -> Answer:
    from simulator.forecast.forecast import forecast
    from simulator.report import write_all
    from simulator.report.tables import summary_table

    with progress() as hear:
        result = forecast(scenario, folder, fold=fold, progress=hear)
    tell_guesses(scenario, folder)
    tell_idle(scenario)
    for sentence in result.summary.get("swap", {}).get("overloads", ()):
        say(sentence)
    files = write_all(result, out, origin)
    say(f"wrote {', '.join(sorted(file.name for file in files))} into {out}")
    return Answer(result.summary, lambda: summary_table(result.summary))


def _serving(scenario: ServingScenario, folder: Path, out: Path, origin: Origin) -> Answer:
    from simulator.forecast.serving.forecast import serve
    from simulator.report.serving_files import write_serving
    from simulator.report.serving_table import serving_table

    with progress() as hear:
        result = serve(scenario, folder, hear)
    tell_guesses(scenario, folder)
    files = write_serving(result, out, origin)
    say(f"wrote {', '.join(sorted(file.name for file in files))} into {out}")
    return Answer(result.summary, lambda: serving_table(result.summary))


def _check_folder(out: Path) -> None:
    """Look before the simulation whether its files will have a place, so that its time is not lost."""
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"cannot write into {out}: {nearest} is a file")
