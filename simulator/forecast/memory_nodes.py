"""What does not go with host memory that other nodes of a super-node lend."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario import Scenario


def memory_node_problems(scenario: Scenario) -> Iterator[str]:
    """Where nothing would use it, or more than cards would."""
    offload, swap, found = scenario.training.offload, scenario.training.swap, scenario.cluster.memory_nodes
    if not found:
        return
    where = f"cluster.memory_nodes: found {found}"
    if offload.optimizer or offload.parameters:
        yield f"{where}, and cores that update what lies in other nodes are not simulated; allowed: 0"
    elif not offload.activations and swap != "auto" and not swap.operators:
        yield f"{where}, but nothing is kept in host memory; allowed: 0, or training.offload.activations, or a swap"
