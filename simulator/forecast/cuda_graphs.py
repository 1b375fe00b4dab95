"""What rules out capturing parts of layers as CUDA graphs, as Megatron-LM's arguments and Transformer Engine do."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.recomputation import recompute_of
from simulator.forecast.scenario import Scenario
from simulator.forecast.scenario_memory import Swap
from simulator.hardware.accelerator import Accelerator
from simulator.model.architecture import Architecture
from simulator.program.exchanges import exchanges
from simulator.program.job import FULL_ITERATION

_WHERE = "training.cuda_graphs"
_NOT_BESIDE = {"core_attn": "attn", "moe": "moe_router", "shared_experts": "moe_router"}
"""Modules that run again with a captured part around them, or around a captured part."""


def graph_problems(scenario: Scenario, architecture: Architecture, accelerator: Accelerator) -> Iterator[str]:
    """What does not go with the graphs that are asked for."""
    asked, training = scenario.training.cuda_graphs, scenario.training
    if not asked:
        return
    if accelerator.sheet.graph_gap is None:
        yield f"{_WHERE}: found on {accelerator.id}, of which no graphs are known; leave it out"
    if training.execution != "fused":
        yield f"{_WHERE}: found with execution {training.execution}; known of fused alone (Transformer Engine)"
    if training.zero not in (1, 2):
        yield (
            f"{_WHERE}: found with zero {training.zero}, but a graph reads parameters where they lay when it was "
            "captured; allowed: zero 1 or 2"
        )
    yield from _iteration_problems(scenario, architecture)
    if "moe_preprocess" in asked and "moe_router" not in asked:
        yield f"{_WHERE}: found moe_preprocess without moe_router, which comes before it; allowed: both"
    if training.overlap_tensor_parallel:
        yield f"{_WHERE}: found with overlap_tensor_parallel, which is not known within graphs; leave one out"
    yield from _part_problems(scenario, architecture)
    yield from _memory_problems(scenario)


def _iteration_problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    """What keeps all passes from being one graph: what else is captured, and shapes that the host has to know."""
    asked, training = scenario.training.cuda_graphs, scenario.training
    if FULL_ITERATION not in asked:
        return
    where = f"{_WHERE}: found {FULL_ITERATION}"
    if training.zero != 1:
        yield f"{where} with zero {training.zero}; known of Megatron-LM's distributed optimizer alone: zero 1"
    if len(asked) > 1:
        yield f"{where} with parts of layers, which it holds; leave them out"
    if training.images is not None or training.sequences is not None:
        yield f"{where} with images or sequences that differ, but a graph's shapes never change; leave one out"
    if next(iter(architecture.moe_layers()), None) is None:
        return
    if scenario.parallel.ep > 1 and not exchanges()[training.exchange].once:
        ways = ", ".join(name for name, way in exchanges().items() if way.once)
        yield f"{where} with exchange {training.exchange}, whose host reads numbers of rows; allowed: {ways}"
    if training.grouped_gemm not in ("grouped", "fused"):
        yield f"{where} with experts' matmuls launched one by one for their rows; add grouped_gemm: grouped, or fused"


def _part_problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    asked, routed = scenario.training.cuda_graphs, sum(1 for _ in architecture.moe_layers())
    for part in asked:
        if part.startswith("moe") and not routed:
            yield f"{_WHERE}: found {part}, but {architecture.model_type} has no routed experts; allowed: attn, mlp"
    if "mlp" in asked and routed == len(architecture.layers):
        yield f"{_WHERE}: found mlp, but every layer of {architecture.model_type} has routed experts; leave it out"
    lengths = scenario.training.sequences
    if "attn" in asked and lengths is not None and lengths.lengths is not None:
        yield f"{_WHERE}: found attn with training.sequences.lengths, but a graph's shapes never change; leave one out"


def _memory_problems(scenario: Scenario) -> Iterator[str]:
    asked, training = scenario.training.cuda_graphs, scenario.training
    again = recompute_of(training)
    if again.every or again.keep:
        yield f"{_WHERE}: found with whole layers recomputed (training.recompute: {again}); allowed: none, or modules"
    for module in again.modules:
        if _NOT_BESIDE.get(module) in asked:
            yield f"{_WHERE}: found {_NOT_BESIDE[module]} with the module {module} recomputed; leave one out"
    if training.offload.activations is not None or training.swap != Swap():
        yield f"{_WHERE}: found with activations in host memory, whose copies no graph holds; leave one out"
