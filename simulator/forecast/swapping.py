"""What a scenario swaps, and what of it does not go together."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.offloading import pass_problems
from simulator.forecast.recomputation import recompute_of
from simulator.forecast.scenario import Scenario, Training
from simulator.forecast.scenario_memory import Swap as Asked
from simulator.model.architecture import Architecture
from simulator.model.operator import Operator, Workload
from simulator.model.operators.layers import listed_operators
from simulator.model.recompute import LAYER_INPUT, WHOLE, keeps_result
from simulator.program.swap import Swap

_WHERE = "training.swap"
_CORES = ("delta_rule", "sparse_attention")


def asked_swaps(training: Training) -> tuple[Asked, ...]:
    """What *training* names: for all layers, or stage by stage; nothing where a solver is to choose."""
    asked = training.swap
    if asked == "auto":
        return ()
    return asked if isinstance(asked, tuple) else (asked,)


def swaps_of(training: Training) -> tuple[Swap, ...]:
    """What *training* swaps."""
    return tuple(Swap(one.operators, one.on_card, one.prefetch, one.in_flight) for one in asked_swaps(training))


def swap_problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    """Why the model or the other settings have no such swap."""
    training = scenario.training
    if training.swap == "auto":
        yield from _automatic_problems(training)
        return
    if isinstance(training.swap, tuple) and len(training.swap) != scenario.parallel.pp:
        yield (
            f"{_WHERE}: found a list of {len(training.swap)}, and pp is {scenario.parallel.pp}; allowed: one for each "
            "stage, or one for all without a list"
        )
    named = [asked for asked in asked_swaps(training) if asked.operators or asked.on_card]
    if not named:
        if isinstance(training.swap, tuple) or training.swap.model_fields_set:
            yield f"{_WHERE}: names no operators to swap; leave it out, or name some"
        return
    yield from _setting_problems(training)
    known = swappable(architecture, training)
    for asked in named:
        yield from _name_problems(asked, known, architecture.model_type)
        yield from _share_problems(asked)


def swappable(architecture: Architecture, training: Training) -> tuple[str, ...]:
    """Operators of *architecture* whose results may be kept, or go to the host, instead of running again."""
    recompute = recompute_of(training)
    found: dict[str, None] = {}
    for operator in _listed(architecture, training):
        known = keeps_result(operator) and not _unknown(operator, training)
        if known if recompute.every else operator.saved:
            found[operator.name] = None
    return (*found, *((LAYER_INPUT,) if recompute.every else ()))


def _listed(architecture: Architecture, training: Training) -> Iterator[Operator]:
    workload = Workload((training.sequence_length,), training.execution, training.attention, training.core_kernels)
    for layer in dict.fromkeys((layer.mixer, layer.feed_forward) for layer in architecture.layers):
        one = next(each for each in architecture.layers if (each.mixer, each.feed_forward) == layer)
        yield from listed_operators(architecture, one, workload)


def _unknown(operator: Operator, training: Training) -> bool:
    """Whether its core keeps more than its inputs and result, which running again alone would bring back."""
    fused = (training.core_kernels or training.execution) == "fused"
    return operator.name in _CORES and not fused


def _automatic_problems(training: Training) -> Iterator[str]:
    if recompute_of(training) != WHOLE:
        yield f"{_WHERE}: found auto, which chooses among what is computed again; allowed: recompute full"
    yield from _setting_problems(training)


def _share_problems(asked: Asked) -> Iterator[str]:
    for name in sorted(set(asked.operators) & set(asked.on_card)):
        if (total := asked.operators[name] + asked.on_card[name]) > 1:
            yield (
                f"{_WHERE}.on_card.{name}: found {asked.on_card[name]:g}, and operators.{name}"
                f"({asked.operators[name]:g}) + on_card.{name}({asked.on_card[name]:g}) = {total:g}, more than all "
                f"layers; nearest: {1 - asked.operators[name]:g}"
            )


def _name_problems(asked: Asked, known: tuple[str, ...], model_type: str) -> Iterator[str]:
    for field, names in (("operators", asked.operators), ("on_card", asked.on_card)):
        for name in names:
            if name not in known:
                yield f"{_WHERE}.{field}: found {name}; {model_type} has {', '.join(known)}"


def _setting_problems(training: Training) -> Iterator[str]:
    recompute = recompute_of(training)
    if recompute.keep:
        yield f"{_WHERE}: found with recompute.keep, which chooses results itself; allowed: none, full, every, modules"
    if any(asked.on_card for asked in asked_swaps(training)) and not recompute.every:
        yield f"{_WHERE}.on_card: nothing is recomputed whole, and all stays there; allowed: recompute full or every"
    if training.offload.activations is not None:
        yield f"{_WHERE}: found with offload.activations, which sends everything; allowed: one or the other"
    yield from pass_problems(training, _WHERE)
