"""What a scenario keeps in host memory, and what of it does not go together."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.recomputation import recompute_of
from simulator.forecast.scenario import Scenario, Training
from simulator.program.offload import Offload

_WHERE = "training.offload"


def offload_of(training: Training) -> Offload:
    """What *training* keeps in host memory."""
    asked = training.offload
    return Offload(activations=asked.activations)


def offload_problems(scenario: Scenario) -> Iterator[str]:
    """Why the other settings have no such offload."""
    if scenario.training.offload.activations is not None:
        yield from _activation_problems(scenario)


def _activation_problems(scenario: Scenario) -> Iterator[str]:
    training, where = scenario.training, f"{_WHERE}.activations"
    recompute = recompute_of(training)
    if recompute.keep or recompute.modules:
        yield (
            f"{where}: found with selective recomputation, whose kept results are not offloaded; allowed: recompute "
            "none, full, or every"
        )
    if training.images is not None:
        yield f"{where}: what the vision tower keeps is not offloaded yet; leave it out, or images"
    if training.float8 is not None:
        yield f"{where}: eight-bit copies are not offloaded yet; leave it out, or float8"
