"""Splitting a layer's parts among ranks: what of each part one rank of a tensor-parallel group holds.

Heads and intermediate widths are divided; what there are fewer of than ranks (key-value heads of grouped attention) is
copied. Each kind of part says in its operators' file which of its fields these are (`SPLITS`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from math import ceil
from typing import Any, Literal, TypeVar

from simulator.model.architecture import Architecture, FeedForward, GroupedAttention, Layer, Mixer

Part = TypeVar("Part", bound=Mixer | FeedForward)


@dataclass(frozen=True, slots=True)
class Split:
    """A field of a part that the ranks of *axis* share: a count, or a part of its own."""

    field: str
    what: str
    """What it counts, in words for messages."""
    axis: Literal["tp", "etp"] = "tp"
    copied: bool = False
    """Whether each rank holds one where there are fewer than ranks."""


def share(part: Part, tp: int, etp: int = 1) -> Part:
    """What one of *tp* ranks holds of *part*, and one of *etp* ranks of its routed experts; rounded up."""
    if tp == etp == 1:
        return part
    fields: dict[str, Any] = {}
    for split in _splits(part):
        value = getattr(part, split.field)
        ranks = tp if split.axis == "tp" else etp
        fields[split.field] = share(value, tp, etp) if isinstance(value, GroupedAttention) else ceil(value / ranks)
    return replace(part, **fields)


def share_model(architecture: Architecture, tp: int, etp: int = 1) -> Architecture:
    """*architecture* with layers and a vocabulary as one rank holds them: its parameters are that rank's tensors."""

    def held(layer: Layer) -> Layer:
        mixer = layer.mixer and share(layer.mixer, tp, etp)
        return replace(layer, mixer=mixer, feed_forward=layer.feed_forward and share(layer.feed_forward, tp, etp))

    layers, module = (tuple(map(held, some)) for some in (architecture.layers, architecture.mtp_module))
    return replace(architecture, layers=layers, mtp_module=module, vocabulary=ceil(architecture.vocabulary / tp))


def split_problems(
    architecture: Architecture, tp: int, cp: int, etp: int, sequence_lengths: tuple[int, ...] = ()
) -> list[str]:
    """What of *architecture* does not divide among *tp* and *etp* ranks, and which sequences not among *cp*.

    One sentence a problem, with the arithmetic and the nearest degrees that divide.
    """
    found: dict[str, tuple[str, int, int, bool]] = {"the vocabulary": ("tp", tp, architecture.vocabulary, False)}
    if architecture.mtp_layers:
        found["the hidden width of a prediction module"] = ("tp", tp, architecture.hidden, False)
    for layer in (*architecture.layers, *architecture.mtp_module):
        parts = [part for part in (layer.mixer, layer.feed_forward) if part is not None]
        for part in parts:
            for split, count in split_counts(part):
                ranks = tp if split.axis == "tp" else etp
                found[f"{split.what} of {part.kind.replace('_', ' ')}"] = (split.axis, ranks, count, split.copied)
    problems = [_problem(what, *numbers) for what, numbers in found.items()]
    problems += [_sequence_problem(length, cp) for length in dict.fromkeys(sequence_lengths)]
    return [problem for problem in problems if problem]


def _splits(part: Mixer | FeedForward) -> tuple[Split, ...]:
    splits: tuple[Split, ...] = import_module(f"simulator.model.operators.{part.kind}").SPLITS
    return splits


def split_counts(part: Mixer | FeedForward) -> Iterator[tuple[Split, int]]:
    """Every field of *part* that ranks share, with what it counts."""
    for split in _splits(part):
        value = getattr(part, split.field)
        if isinstance(value, GroupedAttention):
            yield from split_counts(value)
        else:
            yield split, value


def _problem(what: str, axis: str, ranks: int, count: int, copied: bool) -> str:
    if count % ranks == 0 or (copied and count and ranks % count == 0):
        return ""
    fits = [n for n in range(1, 2 * max(ranks, 1) + 1) if count % n == 0 or (copied and n % count == 0)]
    return (
        f"{axis}({ranks}) does not divide {what}: {count:,} / {ranks} = {count / ranks:.2f}; "
        f"the nearest degrees that do are {nearest_degrees(fits, ranks)}"
    )


def _sequence_problem(length: int, cp: int) -> str:
    """Causal attention is balanced by giving each rank one of 2 cp pieces from the front and one from the back."""
    if cp == 1 or length % (2 * cp) == 0:
        return ""
    fits = [n for n in range(1, 2 * cp + 1) if n == 1 or length % (2 * n) == 0]
    return (
        f"cp({cp}) does not cut a sequence into 2 cp equal pieces: {length:,} / {2 * cp} = {length / (2 * cp):.2f}; "
        f"the nearest degrees that do are {nearest_degrees(fits, cp)}"
    )


def nearest_degrees(fits: list[int], wanted: int) -> str:
    """The largest of *fits* below *wanted* and the smallest above."""
    near = [max(n for n in fits if n < wanted), *[n for n in fits if n > wanted][:1]]
    return " and ".join(str(n) for n in near)
