"""`rackcast fit`: does the job fit in memory?"""

from __future__ import annotations

from simulator.cli.bar import progress
from simulator.cli.guard import DOES_NOT_FIT, DONE, Answer, conclude
from simulator.cli.guesses import tell_guesses, tell_idle
from simulator.cli.options import AsJson, Changes, ScenarioName


def fit(scenario: ScenarioName, changes: Changes = None, as_json: AsJson = False) -> None:
    """Tell whether the job fits in memory.

    If it does not, name the cheapest changes that make it fit; the exit status is then 1.
    """
    conclude(lambda: _answer(scenario, changes or []), as_json)


def _answer(name: str, changes: list[str]) -> Answer:
    from simulator.forecast.reading import open_scenario, placing

    document, folder = open_scenario(name, changes)
    from simulator.forecast.fitting import fit as fit_scenario
    from simulator.report.tables import fit_table

    with placing(document), progress() as hear:
        result = fit_scenario(document.content, folder, hear)
    tell_guesses(document.content, folder)
    tell_idle(document.content)
    return Answer(result, lambda: fit_table(result), DONE if result["fits"] else DOES_NOT_FIT)
