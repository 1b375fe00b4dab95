"""What tp ranks gather in fp8: torchao's tensor-parallel layers cast their own part first, with one scale a tensor.

Compiled, and where a gathered tensor or a scattered result belongs to linear layers in fp8: inputs are cast before they
are gathered (`PrepareFloat8ModuleInput`), gradients of results before they are gathered backward
(`Float8RowwiseParallel`), each on a rank's own tokens. Sums travel in bf16. The backward pass keeps what was gathered,
and needs of both the copy along the other width. That ranks agree on the scale, an all-reduce of one number, is left
out. Rows with scales of their own travel in bf16.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from simulator.model.operator import Collective, Kernel, Operator, Saved, Workload
from simulator.model.operators.float8_casts import BF16_BYTES, Casts, cast_kernels
from simulator.model.operators.lane import Step

Moved = TypeVar("Moved", Kernel, Collective)
_TURNED = (Step("quantize_transposed", 2),)
"""The copy along the other width, of what arrived in fp8."""
_SHARE = 1 / BF16_BYTES


@dataclass(frozen=True, slots=True)
class Travelling:
    """By position in a layer: gathers and scatters whose tensors travel in fp8, and linear layers beside them."""

    gathers: frozenset[int] = frozenset()
    scatters: frozenset[int] = frozenset()
    readers: frozenset[int] = frozenset()
    """Linear layers that read what was gathered."""


def travelling(operators: Sequence[Operator], takes_part: Sequence[bool], workload: Workload) -> Travelling:
    """What of *operators* travels in fp8; *takes_part*: which of them are linear layers in fp8."""
    float8 = workload.float8
    split = workload.tp > 1 and workload.sequence_parallel and workload.execution == "compiled"
    if not split or float8 is None or float8.recipe != "tensorwise":
        return Travelling()
    numbers = range(len(operators) - 1)
    gathers = frozenset(n for n in numbers if operators[n].name == "tp_gather" and takes_part[n + 1])
    scatters = frozenset(n + 1 for n in numbers if operators[n + 1].name == "tp_scatter" and takes_part[n])
    sources = {operators[n + 1].reads for n in gathers}
    readers = frozenset(n for n, one in enumerate(operators) if takes_part[n] and one.reads in sources)
    return Travelling(gathers, scatters, readers)


def sent_in_float8(operator: Operator, casts: Casts, workload: Workload, *, back: bool) -> Operator:
    """A gather, or *back* a scatter, whose tensor goes to all ranks in fp8, each rank's own part cast before."""
    whole = operator.output_bytes * (workload.tp if back else 1) / BF16_BYTES
    cast = cast_kernels(casts.forward, whole / workload.tp, casts.scales)
    if back:
        copies, collectives = tuple(_narrow(operator.backward)), tuple(_narrow(operator.backward_collectives))
        return replace(operator, backward=(*cast, *copies), backward_collectives=collectives)
    copies, collectives = tuple(_narrow(operator.forward)), tuple(_narrow(operator.forward_collectives))
    size = operator.output_bytes * _SHARE
    return replace(operator, forward=(*cast, *copies), forward_collectives=collectives, output_bytes=size)


def beside_transfers(casts: Casts, number: int, found: Travelling) -> Casts:
    """*casts* of the linear layer at position *number*: what arrives in fp8 is only turned."""
    if number in found.readers:
        casts = replace(casts, forward=(), again=_TURNED if casts.again else ())
    return replace(casts, gradient=_TURNED) if number + 1 in found.scatters else casts


def keeps_gathered(operator: Operator) -> Operator:
    """A linear layer that reads what was gathered in fp8, and keeps that for the gradient of its weights."""

    def narrow(tensor: Saved) -> Saved:
        return replace(tensor, bytes=tensor.bytes * _SHARE) if tensor.name == operator.reads else tensor

    return replace(operator, saved=tuple(map(narrow, operator.saved)))


def _narrow(moved: Iterable[Moved]) -> Iterator[Moved]:
    return (replace(one, bytes=one.bytes * _SHARE) for one in moved)
