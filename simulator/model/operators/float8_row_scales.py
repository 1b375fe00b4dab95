"""What scales of rows cost torchao beside casts and products (`torchao/float8`, recipe rowwise).

Gradients are products that add up exactly. CUTLASS' kernel with scales of rows is slow at that, so cuBLAS multiplies
with one scale, and both scales go over the result in bf16 (`addmm_float8_unwrapped`; pytorch/ao#2184).

A scale is 448 over the largest value, in fp64, rounded down to a power of two. A compiler stores the largest values and
works that out anew in every element of a kernel that reads a scale: profiled kernels that multiply results are bound by
fp64. Casts alone escape, because the kernel that finds a row's largest value goes on to cast the row; not so where tp
ranks hold parts of the row and reduce the largest values among them.

Behind a gather in bf16 the gradients of one input are summed two at a time. With an odd number of readers the last one
goes into the copy between the parts of tp ranks, where every element works out its scale once for each part
(pytorch/torchtitan#1207 is about what that costs). The all-reduces of the largest values are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.model.operator import Kernel, Operator, Workload
from simulator.model.operators.communication import LARGEST_JOINED_COPY
from simulator.model.operators.float8_casts import BF16_BYTES, SCALE_FLOPS, Casts, Passes, cast_kernels
from simulator.model.operators.lane import FP32_BYTES, Step

_RESULT_BYTES = 2 * BF16_BYTES
_REDUCED: Passes = (Step("reduction", BF16_BYTES), Step("rescale", BF16_BYTES + 1, "fp64"))
"""The cast of rows whose largest values tp ranks reduce among them."""
_ALONE, _IN_PARTS = 1, 2
"""As many scales as an element of a weight's gradient takes the time of, without tp ranks and with them. The compiled
kernel works out two either way. On an H200 it took 300 us for 58.7 million elements and 86 us for 16.8 million without
ranks, 5.1 ps each, and 66 us for 7.3 million and 260 us for 29.4 million with eight, 9.0 ps each; a scale takes 4.5 ps.
Why they differ is not known."""
_EAGER: Passes = (Step("broadcast", FP32_BYTES, "fp32"), Step("broadcast", _RESULT_BYTES + FP32_BYTES))
"""A tensor of all products of two scales, and the product of the result with it."""


@dataclass(frozen=True, slots=True)
class RowScales:
    """By position in a layer: what is done for scales of rows beside the casts and products of each linear layer."""

    linear: frozenset[int] = frozenset()
    reduced_inputs: frozenset[int] = frozenset()
    """Linear layers whose input lies on tp ranks in parts of rows."""
    reduced_gradients: frozenset[int] = frozenset()
    """Linear layers whose result does."""
    sums: frozenset[int] = frozenset()
    """Gathers whose copy backward is of a sum that is there already."""
    joined: frozenset[int] = frozenset()
    """Gathers whose copy backward takes the last reader's result with it."""
    last: frozenset[int] = frozenset()
    """Those readers."""


def row_scales(operators: Sequence[Operator], takes_part: Sequence[bool], workload: Workload) -> RowScales:
    """What scales of rows cost where in a layer of *operators*; *takes_part*: which are linear layers in fp8."""
    float8 = workload.float8
    if float8 is None or float8.recipe != "rowwise":
        return RowScales()
    linear = [n for n, one in enumerate(operators) if takes_part[n] and one.rows != "routed"]
    if workload.execution != "compiled" or workload.tp == 1 or not workload.sequence_parallel:
        return RowScales(frozenset(linear))
    readers = {gather: _readers(operators, linear, gather) for gather in range(len(operators) - 1)}
    odd = {g for g, found in readers.items() if len(found) % 2 and workload.tp <= LARGEST_JOINED_COPY}
    before = {n for n in linear if n + 1 < len(operators) and operators[n + 1].name == "tp_scatter"}
    return RowScales(
        linear=frozenset(linear),
        reduced_inputs=frozenset(before),
        reduced_gradients=frozenset(n for found in readers.values() for n in found),
        sums=frozenset(g for g, found in readers.items() if found and g not in odd),
        joined=frozenset(odd),
        last=frozenset(readers[gather][-1] for gather in odd),
    )


def cast_by_rows(casts: Casts, number: int, found: RowScales) -> Casts:
    """*casts* of the linear layer at position *number*, where tp ranks hold parts of a row."""
    if number in found.reduced_inputs:
        casts = replace(casts, forward=_REDUCED)
    if number in found.reduced_gradients:
        casts = replace(casts, gradient=(*_REDUCED, *casts.gradient[1:]))
    return casts


def rescaled(linear: Operator, number: int, found: RowScales, workload: Workload) -> Operator:
    """The *linear* layer at position *number* with its gradients multiplied by their scales."""
    if number not in found.linear:
        return linear
    of_input, of_weight = _result(linear.backward), _result(linear.backward_weight)
    if workload.execution == "eager":
        input_kernels, weight_kernels = (cast_kernels(_EAGER, elements, 0) for elements in (of_input, of_weight))
    else:
        input_kernels = () if number in found.last else (_rescale(of_input, 1, _RESULT_BYTES),)
        weight_kernels = (_rescale(of_weight, _ALONE if workload.tp == 1 else _IN_PARTS, _RESULT_BYTES),)
    return replace(
        linear,
        backward=(*linear.backward, *input_kernels),
        backward_weight=(*linear.backward_weight, *weight_kernels),
    )


def copied_back(gather: Operator, number: int, found: RowScales, workload: Workload) -> Operator:
    """The *gather* at position *number* with its copy backward as scales of rows leave it."""
    elements = gather.output_bytes / BF16_BYTES
    if number in found.joined:
        copy = _rescale(elements, workload.tp, 3 * BF16_BYTES)
        return replace(gather, backward=(copy,))
    if number in found.sums:
        (copy,) = gather.backward
        summands = copy.bytes / gather.output_bytes - 1
        return replace(gather, backward=(replace(copy, flops=copy.flops / summands, bytes=2 * gather.output_bytes),))
    return gather


def _readers(operators: Sequence[Operator], linear: Sequence[int], gather: int) -> list[int]:
    if operators[gather].name != "tp_gather":
        return []
    source = operators[gather + 1].reads
    return [n for n in linear if source and n > gather and operators[n].reads == source]


def _result(kernels: tuple[Kernel, ...]) -> float:
    """Elements that the product among *kernels* makes."""
    rows, columns, _ = next(kernel for kernel in kernels if kernel.kind == "gemm").shape
    return float(rows * columns)


def _rescale(elements: float, scales: int, element_bytes: float) -> Kernel:
    """A pass over *elements* that works out so many *scales* for each."""
    return Kernel("rescale", SCALE_FLOPS * scales * elements, element_bytes * elements, dtype="fp64")
