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
    from simulator.forecast.reading import open_any_scenario, placing

    document, folder = open_any_scenario(name, changes)
    scenario = document.content
    from simulator.forecast.fitting import fit as fit_scenario
    from simulator.forecast.scenario_serving import ServingScenario
    from simulator.forecast.serving.fitting import fit_serving
    from simulator.report.tables import fit_table

    with placing(document), progress() as hear:
        if isinstance(scenario, ServingScenario):
            result = fit_serving(scenario, folder)
        else:
            result = fit_scenario(scenario, folder, hear)
    tell_guesses(scenario, folder)
    if not isinstance(scenario, ServingScenario):
        tell_idle(scenario)
    return Answer(result, lambda: fit_table(result), DONE if result["fits"] else DOES_NOT_FIT)
