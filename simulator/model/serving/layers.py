"""Layers with a cache: a training step's forward operators, with what reads a cache in place of the mixer's core.

Products take the formats of served weights. Where a layer's experts are split among the ranks of tp, or all ranks of
an expert-parallel group have the same tokens, rows travel nowhere and the ranks' sums are added by one all-reduce,
which takes the shared experts' with it (vLLM and SGLang do so).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Literal

from simulator.model.architecture import Architecture, Layer, Mixer, MixtureOfExperts
from simulator.model.operator import Collective, Operator, Workload
from simulator.model.operators.layers import listed_operators
from simulator.model.serving.formats import Formats
from simulator.model.serving.iteration import Iteration
from simulator.model.serving.products import in_formats
from simulator.model.serving.small_steps import in_one_kernel
from simulator.model.split import share

Part = Literal["attention", "products", "experts", "small"]


@dataclass(frozen=True, slots=True)
class Served:
    """An operator of a layer that serves, and what of the iteration's time it counts as."""

    part: Part
    operator: Operator


@dataclass(frozen=True, slots=True)
class Setting:
    """How a rank runs its layers."""

    tp: int
    etp: int
    exchanges: bool
    """Whether rows travel to the ranks of their experts, because these have tokens of their own."""
    formats: Formats
    native: frozenset[str]
    """Number formats of the accelerator's arithmetic."""


def workload(iteration: Iteration, tp: int) -> Workload:
    """What an iteration feeds to the parts of layers that read no cache: its tokens in one row."""
    return Workload(
        (max(1, iteration.tokens),), execution="fused", core_kernels="partly_fused", tp=tp, sequence_parallel=False
    )


def served_layer(
    architecture: Architecture, layer: Layer, iteration: Iteration, setting: Setting
) -> tuple[Served, ...]:
    """Operators of *layer* on one rank, forward, in order."""
    feed_forward = layer.feed_forward and share(layer.feed_forward, 1, setting.etp)
    work = workload(iteration, setting.tp)
    found = listed_operators(architecture, replace(layer, feed_forward=feed_forward), work)
    if isinstance(feed_forward, MixtureOfExperts) and not setting.exchanges:
        found = tuple(_without_exchange(found, setting.tp))
    parts = _with_cache(in_one_kernel(found, layer), layer.mixer, architecture.hidden, iteration, setting)
    return tuple(in_formats_of(parts, setting))


def in_formats_of(parts: Iterable[Served], setting: Setting) -> Iterator[Served]:
    """*parts* with their products in the formats of the weights."""
    known: set[str] = set()
    for served in parts:
        yield replace(served, operator=in_formats(served.operator, setting.formats, setting.native, known))


def _with_cache(
    operators: Iterable[Operator], mixer: Mixer | None, hidden: int, iteration: Iteration, setting: Setting
) -> Iterator[Served]:
    replaced: frozenset[str] = frozenset()
    core: tuple[Operator, ...] = ()
    if mixer is not None:
        module = import_module(f"{__package__}.{mixer.kind}")
        replaced = module.REPLACED
        work = workload(iteration, setting.tp)
        core = tuple(module.cached(share(mixer, setting.tp), hidden, work, iteration, setting.formats.cache))
    for operator in operators:
        if operator.name in replaced:
            yield from (Served("products" if each.reads else "attention", each) for each in core)
            core = ()
        else:
            yield Served(_part(operator), operator)


def _part(operator: Operator) -> Part:
    kinds = {kernel.kind for kernel in operator.forward}
    if "grouped_gemm" in kinds:
        return "experts"
    return "products" if "gemm" in kinds else "small"


_WIRES = frozenset({"dispatch", "combine", "sort_by_expert", "sort_by_source", "tp_copy", "tp_gather"})
"""What moves rows or shares of tokens between ranks around experts."""


def _without_exchange(operators: Iterable[Operator], tp: int) -> Iterator[Operator]:
    """*operators* of a layer with experts whose ranks have the same tokens: one sum behind both sorts of experts."""
    mixed, behind = list(operators), False
    last = max(number for number, each in enumerate(mixed) if each.name in ("unpermute", "shared_add"))
    for number, operator in enumerate(mixed):
        behind = behind or operator.name == "route"
        if behind and number <= last and operator.name in _WIRES | {"tp_reduce"}:
            continue
        yield operator
        if number == last and tp > 1:
            one = (Collective("all_reduce", "tp", operator.output_bytes),)
            yield Operator("tp_reduce", (), output_bytes=operator.output_bytes, forward_collectives=one)
