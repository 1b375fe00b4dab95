"""What does not go with host memory that other nodes of a super-node lend."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario import Scenario
from simulator.forecast.swapping import asked_swaps


def memory_node_problems(scenario: Scenario) -> Iterator[str]:
    """Where nothing would use it, or more than cards would."""
    training, found = scenario.training, scenario.cluster.memory_nodes
    if not found:
        return
    where = f"cluster.memory_nodes: found {found}"
    swaps = training.swap == "auto" or any(asked.operators for asked in asked_swaps(training))
    if training.offload.optimizer or training.offload.parameters:
        yield f"{where}, and cores that update what lies in other nodes are not simulated; allowed: 0"
    elif not training.offload.activations and not swaps:
        yield f"{where}, but nothing is kept in host memory; allowed: 0, or training.offload.activations, or a swap"
