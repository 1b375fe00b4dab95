"""What a scenario says of recomputation, as the model's floor knows it, and what of it does not go together."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario import Recompute as Selective
from simulator.forecast.scenario import Scenario, Training
from simulator.model.architecture import Architecture, GroupedAttention
from simulator.model.operator import Workload
from simulator.model.operators.layers import listed_operators
from simulator.model.recompute import NOTHING, WHOLE, Recompute, modules_of, needs_local_keys

_WHERE = "training.recompute"
_INSIDE_MOE = ("moe_act", "shared_experts")
_HELD_BY = {
    "core_attn": "an attention core of one kernel or over scores in memory",
    "mla_up_proj": "latent attention that expands keys and values",
    "moe_act": "routed experts",
    "layernorm": "a norm of its own: Transformer Engine has one before latent attention and before experts alone",
    "mlp": "a dense feed-forward part",
    "moe": "routed experts",
    "shared_experts": "shared experts",
}
"""What a model needs to have a module."""


def recompute_of(training: Training) -> Recompute:
    """What *training* recomputes."""
    asked = training.recompute
    if isinstance(asked, Selective):
        return Recompute(asked.every or 0, asked.keep, asked.modules)
    return WHOLE if asked == "full" else NOTHING


def recompute_problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    """Why the model or the other settings have no such recomputation."""
    training, split = scenario.training, scenario.parallel
    asked = recompute_of(training)
    longest = -(-len(architecture.layers) // split.pp)
    if asked.every > longest:
        yield (
            f"{_WHERE}.every: found {asked.every}, but a stage of {len(architecture.layers)} layers / pp({split.pp}) "
            f"has {longest} at most, so that none would be recomputed; allowed: up to {longest}"
        )
    if asked.keep and training.zero == 1:
        yield (
            f"{_WHERE}.keep: is PyTorch's selective checkpoint, and zero: 1 is Megatron-LM's step, whose checkpoint "
            "keeps no results; allowed: zero: 3, or modules"
        )
    if training.images is not None and asked not in (NOTHING, WHOLE):
        yield f"{_WHERE}: with images, blocks of the vision tower are known recomputed as a whole; allowed: none, full"
    if asked.modules:
        yield from _module_problems(scenario, architecture, asked)


def _module_problems(scenario: Scenario, architecture: Architecture, asked: Recompute) -> Iterator[str]:
    training, where = scenario.training, f"{_WHERE}.modules"
    known = available_modules(architecture, training)
    for module in asked.modules:
        if module not in known:
            has = ", ".join(sorted(known)) or "none"
            yield f"{where}: {architecture.model_type} has no {module}, which takes {_HELD_BY[module]}; it has {has}"
    if training.execution != "fused":
        yield f"{where}: Megatron-LM's need execution: fused, found {training.execution}; allowed: fused, or keep"
    inner = [module for module in asked.modules if module in _INSIDE_MOE]
    if "moe" in asked.modules and inner:
        yield f"{where}: {' and '.join(inner)} run again with moe, which they are part of; allowed: one or the other"
    if needs_local_keys(asked) and scenario.parallel.cp > 1 and training.context_parallel != "ring":
        yield (
            f"{where}: core_attn and mla_up_proj are known with cp({scenario.parallel.cp}) where ranks keep keys and "
            f"values of their own tokens, found context_parallel: {training.context_parallel}; allowed: ring, or cp: 1"
        )
    if "core_attn" in asked.modules and training.attention == "unfused" and _repeats_keys(architecture):
        yield (
            f"{where}: core_attn over scores in memory is known of as many key-value heads as query heads, "
            f"{architecture.model_type} has fewer; allowed: attention: flash, or without core_attn"
        )


def available_modules(architecture: Architecture, training: Training) -> frozenset[str]:
    """Modules that *architecture* has in a hand-fused stack."""
    workload = Workload((training.sequence_length,), attention=training.attention)
    makes = {(layer.mixer, layer.feed_forward): layer for layer in architecture.layers}
    listed = (listed_operators(architecture, layer, workload) for layer in makes.values())
    return frozenset(module for operators in listed for module in modules_of(operators))


def _repeats_keys(architecture: Architecture) -> bool:
    mixers = (layer.mixer for layer in architecture.layers)
    return any(isinstance(mixer, GroupedAttention) and mixer.kv_heads != mixer.heads for mixer in mixers)
