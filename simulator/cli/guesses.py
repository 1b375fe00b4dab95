"""What of a model is only guessed at, and what of a scenario changes nothing: said on standard error by a forecast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simulator.cli.guard import say

if TYPE_CHECKING:
    from simulator.forecast.scenario import Described, Scenario


def tell_guesses(scenario: Described, folder: Path) -> None:
    """Approximations of the model of *scenario*, whose names start from *folder*, and fields that nothing reads."""
    from simulator.forecast.assembly import find_architecture

    architecture = find_architecture(scenario.model, folder)
    for sentence in architecture.approximations:
        say(f"model {scenario.model}: {sentence}")
    if architecture.unknown_fields:
        say(f"model {scenario.model}: nothing reads {', '.join(architecture.unknown_fields)}")


def tell_idle(scenario: Scenario) -> None:
    """Settings of *scenario* that change nothing of its forecast."""
    from simulator.forecast.idle import idle_settings

    for sentence in idle_settings(scenario):
        say(sentence)
