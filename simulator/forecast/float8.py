"""fp8 matmuls of a scenario: what the stacks that a scenario can name do, and what is refused.

torchao (eager or compiled) scales tensors or rows, or 32 values (MX); its grouped matmuls scale rows or 32 values, and
its fp8 all-gather tensors. Transformer Engine (fused) scales tensors, from earlier steps or their own, blocks, or 32
values; Megatron-LM keeps both fp8 copies of each weight from the first micro-batch of a step on.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.recomputation import recompute_of
from simulator.forecast.scenario import Scenario, Training
from simulator.hardware.accelerator import Accelerator
from simulator.model.architecture import Architecture, Layer
from simulator.model.float8 import Float8
from simulator.model.operator import Saved, Workload
from simulator.model.operators.attention_core import ATTENTION_OUTPUT
from simulator.model.operators.lane import EXPERT_HIDDEN
from simulator.model.operators.layers import layer_operators
from simulator.model.recompute import WHOLE

_RECIPES = {
    "eager": ("tensorwise", "rowwise"),
    "compiled": ("tensorwise", "rowwise", "mxfp8"),
    "fused": ("delayed", "tensorwise", "blockwise", "mxfp8"),
}
_WHOLE_TENSORS = ("delayed", "tensorwise")
"""Whose shards torchao casts before it gathers them."""
_GATHERED_BY_MEGATRON = (*_WHOLE_TENSORS, "blockwise")
"""Whose shards Transformer Engine casts for Megatron-LM (`cast_master_weights_to_fp8`); in blocks, as
Megatron-MoE-ModelZoo runs DeepSeek-V3 (--fp8-recipe blockwise --fp8-param-gather).
"""
_TENSORS = {"moe_act": EXPERT_HIDDEN, "core_attn": ATTENTION_OUTPUT}
"""What is kept in fewer bits, by the word for it."""


def float8(scenario: Scenario) -> Float8 | None:
    """How linear layers multiply in fp8."""
    training = scenario.training
    asked = training.float8
    if asked is None:
        return None
    fused, stored = training.execution == "fused", frozenset(_TENSORS[name] for name in asked.stored)
    return Float8(
        recipe=asked.recipe,
        dense=asked.dense,
        experts=asked.experts,
        dispatch=asked.dispatch,
        kept=fused and training.zero == 1,
        gathered=asked.all_gather,
        keeps_cast_input=fused and training.lora is None,
        originals=(recompute_of(training).discarded if fused else frozenset()) | (stored & {ATTENTION_OUTPUT}),
        scales=(asked.scales or "together") if fused and asked.recipe == "mxfp8" else None,
        stored=stored,
    )


def gathers_as_megatron(training: Training) -> bool:
    """Whether weights are gathered in an fp8 that Megatron-LM's distributed optimizer alone casts shards to."""
    asked = training.float8
    return asked is not None and asked.all_gather and asked.recipe not in _WHOLE_TENSORS


def float8_problems(scenario: Scenario, architecture: Architecture, accelerator: Accelerator) -> Iterator[str]:
    """What does not go together with fp8 matmuls."""
    training, asked = scenario.training, scenario.training.float8
    if asked is None:
        return
    where, allowed = "training.float8", _RECIPES[training.execution]
    if asked.recipe not in allowed:
        yield (
            f"{where}.recipe: found {asked.recipe}, which no {training.execution} stack has; "
            f"allowed: {', '.join(allowed)}"
        )
    needed = "mxfp8" if asked.recipe == "mxfp8" else "fp8"
    if not accelerator.has_format(needed):
        known = ", ".join(sorted(accelerator.sheet.dense_flops_per_s))
        yield f"{where}.recipe: found {asked.recipe}, but {accelerator.id} has no {needed} arithmetic; it has {known}"
    if asked.recipe == "rowwise" and training.execution == "compiled" and not accelerator.has_format("fp64"):
        known = ", ".join(sorted(accelerator.sheet.dense_flops_per_s))
        yield (
            f"{where}.recipe: found rowwise, whose scales are worked out in fp64, of which {accelerator.id} has no "
            f"rate on record; it has {known}"
        )
    if not (asked.dense or asked.experts):
        yield f"{where}.dense: found false, and experts too; allowed: one of them true, or no float8 at all"
    if asked.all_gather and not asked.dense:
        yield f"{where}.all_gather: is about dense linear layers, found dense: false; leave it out"
    yield from _expert_problems(scenario, architecture)
    yield from _stored_problems(scenario, architecture)
    whole = _GATHERED_BY_MEGATRON if training.zero == 1 else _WHOLE_TENSORS
    if asked.all_gather and asked.recipe not in whole:
        yield f"{where}.all_gather: found recipe {asked.recipe} with zero: {training.zero}; allowed: {', '.join(whole)}"
    if asked.all_gather and training.lora is not None:
        yield f"{where}.all_gather: is about weights that are trained, and lora freezes them; leave it out"
    if asked.all_gather and training.zero in (0, 2):
        zero = training.zero
        yield f"{where}.all_gather: found true, but zero: {zero} gathers no weights to use; allowed: zero 1 or 3"
    if asked.all_gather and training.zero == 1 and training.execution != "fused":
        yield f"{where}.all_gather: with zero: 1 it is Megatron-LM's; allowed: execution fused"


def transformer_engine_problems(training: Training) -> Iterator[str]:
    """What is asked for of Transformer Engine's MXFP8 where there is none."""
    asked = training.float8
    known = asked is not None and asked.recipe == "mxfp8" and training.execution == "fused"
    if asked is not None and asked.scales and not known:
        yield (
            f"training.float8.scales: found recipe {asked.recipe} and execution {training.execution}, whose scales "
            "are in no other order; allowed: mxfp8 and fused"
        )
    if training.grouped_gemm == "fused" and not (known and asked and asked.experts and training.megatron_stack):
        yield (
            "training.grouped_gemm: found fused, which is Transformer Engine's for experts in mxfp8; allowed: "
            "grouped, per_expert, or float8 {recipe: mxfp8, experts: true} with Megatron-LM's layers"
        )


def _expert_problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    training, asked = scenario.training, scenario.training.float8
    assert asked is not None
    where = "training.float8"
    experts = next(iter(architecture.moe_layers()), None) is not None
    for name in ("experts", "dispatch"):
        if getattr(asked, name) and not experts:
            yield f"{where}.{name}: {architecture.model_type} has no routed experts; leave it out"
    if asked.experts and training.execution != "fused" and asked.recipe == "tensorwise":
        yield f"{where}.experts: torchao's grouped matmuls know no tensorwise scales; allowed: rowwise, mxfp8"
    if asked.dispatch and not asked.experts:
        yield f"{where}.dispatch: rows in fp8 are for experts in fp8; add experts: true"
    if asked.dispatch and asked.recipe != "blockwise":
        yield f"{where}.dispatch: has a scale for 128 values, found {asked.recipe}; allowed: recipe blockwise"


def _stored_problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    training, asked = scenario.training, scenario.training.float8
    assert asked is not None
    where, again = "training.float8.stored", recompute_of(training)
    if asked.stored and (asked.recipe != "blockwise" or training.execution != "fused"):
        yield (
            f"{where}: has a scale for 128 values in a fused stack, found recipe {asked.recipe} and "
            f"execution {training.execution}; allowed: blockwise and fused"
        )
    if asked.stored and again == WHOLE:
        yield f"{where}: recompute: full keeps neither; leave it out, or recompute modules"
    kept = {tensor.name for layer in architecture.layers for tensor in _saved(architecture, layer)}
    for word in asked.stored:
        if _TENSORS[word] not in kept:
            yield f"{where}: {architecture.model_type} keeps no {_TENSORS[word]}; leave {word} out"
        whole = "moe" if word == "moe_act" else "core_attn"
        if whole in again.modules:
            yield f"{where}: {word} is not kept where recompute.modules has {whole}; allowed: one or the other"
    if "core_attn" in asked.stored and scenario.parallel.cp > 1:
        yield f"{where}: core_attn is known of whole sequences, found cp({scenario.parallel.cp}); allowed: cp: 1"


def _saved(architecture: Architecture, layer: Layer) -> Iterator[Saved]:
    return (tensor for op in layer_operators(architecture, layer, Workload((1,))) for tensor in op.saved)
