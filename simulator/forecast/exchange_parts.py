"""What does not go with rows that are sent to experts in parts."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario import Scenario
from simulator.forecast.scenario_memory import Swap


def exchange_part_problems(scenario: Scenario) -> Iterator[str]:
    """Each combination that no framework has, or that is not simulated."""
    split, training = scenario.parallel, scenario.training
    if training.exchange_parts == 1:
        return
    where = f"training.exchange_parts: found {training.exchange_parts}"
    if split.ep == 1:
        yield f"{where}, but ep is 1 and nothing is exchanged; allowed: 1, or ep above 1"
    if split.etp > 1:
        yield f"{where}, and etp {split.etp} gathers rows that have come, whole; allowed: etp 1"
    if training.overlap_exchanges:
        yield f"{where}, and exchanges run beside the other pass already; allowed: 1, or overlap_exchanges false"
    if training.megatron_stack:
        yield f"{where}, and Megatron-LM sends rows whole; allowed: 1, another execution, or zero 2 or FSDP2"
    if training.offload.activations or training.swap != Swap():
        yield f"{where}, and copies of activations beside parts are not simulated; allowed: no offload, no swap"
