"""Kernels of attention that a scenario can name, and what rules them out.

FlashAttention-2 takes query and value heads of one width, up to 256, the Triton kernel of 2022 up to 128; both run
wherever they were timed. Attention over
scores in memory is Megatron-LM's of 2022: plainly causal, over whole sequences.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario import Scenario
from simulator.hardware.accelerator import Accelerator
from simulator.model.architecture import Architecture, GroupedAttention
from simulator.model.operators.attention_core import GENERATIONS
from simulator.model.operators.grouped_attention import has_unfused_core

_WIDEST_HEAD = {"flash2": 256, "flash_triton": 128}
"""Dao-AILab/flash-attention: README, and flash_attn_triton.py."""


def attention_problems(scenario: Scenario, architecture: Architecture, accelerator: Accelerator) -> Iterator[str]:
    """What rules out the kernel that is asked for, and dropout."""
    training, model = scenario.training, architecture.model_type
    if training.dropout and any(layer.hyper_connections > 1 for layer in architecture.layers):
        yield f"training.dropout: {model} has parallel residual streams, which know none; leave it out"
    if training.attention in GENERATIONS:
        yield from _generation_problems(training.attention, architecture, accelerator)
    if training.attention == "unfused":
        yield from _unfused_problems(scenario, architecture)


def _generation_problems(kind: str, architecture: Architecture, accelerator: Accelerator) -> Iterator[str]:
    where, model = f"training.attention: {kind}", architecture.model_type
    if kind not in accelerator.curves:
        yield f"{where} was not timed on {accelerator.id}, nor on a part that stands in for it; allowed: flash"
    if others := _other_mixers(architecture):
        yield f"{where} is known of grouped attention, {model} has {others}; allowed: flash"
    widest = max((mixer.head_dim for mixer in _grouped(architecture)), default=0)
    if widest > _WIDEST_HEAD[kind]:
        yield f"{where} takes heads up to {_WIDEST_HEAD[kind]}, those of {model} are {widest} wide; allowed: flash"


def _unfused_problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    training, model = scenario.training, architecture.model_type
    known = "training.attention: unfused is known of plainly causal grouped attention"
    if others := _other_mixers(architecture):
        yield f"{known}, {model} has {others}; allowed: flash"
    if not all(has_unfused_core(mixer) for mixer in _grouped(architecture)):
        yield f"{known}, {model} has windows, chunks or sinks; allowed: flash"
    if training.execution != "fused":
        yield f"training.execution: found {training.execution}; attention: unfused is part of fused, allowed: that"
    if scenario.parallel.cp > 1:
        yield f"parallel.cp: found {scenario.parallel.cp}, but attention: unfused splits no sequence; allowed: 1"


def _grouped(architecture: Architecture) -> list[GroupedAttention]:
    return [layer.mixer for layer in architecture.layers if isinstance(layer.mixer, GroupedAttention)]


def _other_mixers(architecture: Architecture) -> str:
    mixers = [layer.mixer for layer in architecture.layers if layer.mixer is not None]
    return " and ".join(sorted({m.kind.replace("_", " ") for m in mixers if not isinstance(m, GroupedAttention)}))
