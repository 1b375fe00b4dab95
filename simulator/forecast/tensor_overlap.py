"""What rules out transfers between tensor-parallel ranks beside matmuls."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario import Scenario, Training
from simulator.hardware.cluster import Cluster
from simulator.model.architecture import Architecture, GroupedAttention

WHERE = "training.overlap_tensor_parallel"


def tensor_overlap_problems(scenario: Scenario, architecture: Architecture, cluster: Cluster) -> Iterator[str]:
    """All problems, each beginning with the path of the value."""
    training, tp = scenario.training, scenario.parallel.tp
    if not training.overlap_tensor_parallel:
        return
    domain = cluster.scale_up_domain
    if tp == 1:
        yield f"{WHERE}: found true, but tp is 1 and nothing is sent; allowed: false, or parallel.tp above 1"
    if tp > domain:
        yield f"{WHERE}: found true, but copies reach {domain} cards over scale-up links; nearest valid: tp {domain}"
    if not training.sequence_parallel:
        yield f"{WHERE}: found true, but all-reduces are not cut into parts; allowed: sequence_parallel true"
    if not knows_overlap(training.execution, training.zero):
        yield (
            f"{WHERE}: found execution {training.execution} under zero {training.zero}; allowed: execution compiled "
            "(PyTorch), or fused under zero 1 (Megatron-LM)"
        )
    yield from _beside_others(training)
    mixers = {layer.mixer.kind for layer in architecture.layers if layer.mixer is not None}
    if training.execution == "fused" and (others := sorted(mixers - {GroupedAttention.kind})):
        names = ", ".join(others)
        yield f"{WHERE}: found {names}, but Megatron-LM has buffers for grouped attention alone; allowed: false"


def knows_overlap(execution: str, zero: int) -> bool:
    """Whether the stack that runs so has it."""
    return execution == "compiled" or (execution == "fused" and zero == 1)


def _beside_others(training: Training) -> Iterator[str]:
    if training.lora is not None:
        yield f"{WHERE}: found true, but products of adapters are not cut into parts; allowed: false, or no lora"
    if training.exchange_parts > 1:
        yield f"{WHERE}: found true beside exchange_parts {training.exchange_parts}; allowed: one of the two"
