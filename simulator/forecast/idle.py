"""Settings that change nothing: ways of splitting along an axis that has one rank.

They are not refused, because a series over degrees, or a row of a published one, has them all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario import Scenario


def idle_settings(scenario: Scenario) -> Iterator[str]:
    """A sentence for each, which begins with the path of the value."""
    split, training = scenario.parallel, scenario.training
    if split.cp == 1 and training.context_parallel != "all_gather":
        yield f"training.context_parallel: {training.context_parallel} changes nothing, since cp is 1"
    if split.tp == 1 and not training.sequence_parallel:
        yield "training.sequence_parallel: false changes nothing, since tp is 1"
