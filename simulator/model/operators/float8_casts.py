"""Casts around fp8 products: the passes over memory that make fp8 copies of inputs, gradients and weights.

Which tensors are cast when:

- torchao, eager or compiled (`float8_linear.py`, `matmul_with_hp_or_float8_args`): autograd keeps x and W as they are;
  forward casts both, backward casts both again and dy. A compiler makes one or two kernels of each cast, and casts an
  input that several layers share once. With one scale a tensor it keeps scales from forward to backward.
- Transformer Engine (fused): one kernel makes both copies of x, and of dy; autograd keeps the copy of x that the
  weight's gradient reads, one byte an element. Scales of the tensor itself cost a pass for its largest value, delayed
  ones none. An input that Megatron-LM recomputes is kept as it is (`set_save_original_input`) and cast again backward.

"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.model.float8 import SCALE_BYTES, Float8
from simulator.model.operator import Execution, Kernel
from simulator.model.operators.lane import FP32_BYTES, Step

BF16_BYTES = 2
_SMALL_KERNELS = 6
"""From a largest value to a scale, eager: to fp64, cut off, divided, to fp32, rounded to a power of two."""
SCALE_FLOPS = 3
"""A scale, in fp64: the largest value held off zero, its inverse, times the format's largest. What follows in fp32,
log2, floor, exp2 and an inverse, is in the share that the kernels attain (h200-sxm/rescale.yaml)."""
TURNED = Step("quantize", 2)
"""An fp8 copy along the other width, made of the first."""
Passes = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Casts:
    """The passes over memory that make fp8 copies of one tensor, in bytes an element."""

    forward: Passes
    """Of an input, for the product."""
    again: Passes
    """Of an input, for the weight's gradient."""
    gradient: Passes
    """Of a result's gradient, for both products of the backward pass."""
    weight: Passes
    weight_again: Passes
    """Of a weight, for the gradient of the input."""
    once: Passes = ()
    """Of an input, one copy alone: a fused stack only."""
    scales: int = 0
    """Chains of small kernels that each cast runs to find its scales: eager only."""


def casts_of(float8: Float8, execution: Execution) -> Casts:
    """The casts of the stack that *execution* stands for."""
    by_stack = {"eager": _eager, "compiled": _compiled, "fused": _fused}
    casts = by_stack[execution](float8)
    if float8.kept:
        return replace(casts, weight=(), weight_again=())
    return casts


def once_a_step(float8: Float8) -> Passes:
    """The passes that make both copies of a weight that is kept; of one that was gathered, the other copy."""
    return (TURNED,) if float8.gathered else _fused(float8).gradient


def _eager(float8: Float8) -> Casts:
    """Without a compiler: absolute values, their maximum; to fp32, times the scale, cut off, rounded.

    A product's left operand has to stand row by row and its right one column by column: transposed ones are copied.
    """
    rowwise = float8.recipe == "rowwise"
    largest = Step("elementwise", 2 * BF16_BYTES), Step("reduction" if rowwise else "amax", BF16_BYTES)
    scaled = Step("broadcast" if rowwise else "elementwise", 2 * FP32_BYTES, "fp32")
    cut = Step("elementwise", 2 * FP32_BYTES, "fp32")
    cast = (*largest, Step("cast_up", BF16_BYTES + FP32_BYTES), scaled, cut, Step("cast_down", FP32_BYTES + 1, "fp32"))
    transposed = (Step("transpose", 2, "fp8"),)
    if float8.gathered:
        return Casts(cast, (*cast, *transposed), (*cast, *cast, *transposed), (), transposed, scales=1)
    return Casts(cast, (*cast, *transposed), (*cast, *cast, *transposed), cast, (*cast, *transposed), scales=1)


def _compiled(float8: Float8) -> Casts:
    if float8.recipe == "rowwise":
        rows, columns = (Step("quantize_rows", BF16_BYTES + 1),), (Step("quantize_columns", 2 * BF16_BYTES + 1),)
        return Casts(rows, columns, (*rows, *columns), rows, columns)
    if float8.recipe == "mxfp8":
        blocks = (Step("quantize_blocks", BF16_BYTES + 1 + SCALE_BYTES["mxfp8"]),)
        return Casts(blocks, blocks, (*blocks, *blocks), blocks, blocks)
    largest, cast = Step("amax_compiled", BF16_BYTES), Step("quantize", BF16_BYTES + 1)
    turned, both = Step("quantize_transposed", BF16_BYTES + 1), Step("quantize_transposed", BF16_BYTES + 2)
    if float8.gathered:
        return Casts((largest, cast), (turned,), (largest, both), (), (Step("quantize_transposed", 2),))
    return Casts((largest, cast), (turned,), (largest, both), (largest, cast), (turned,))


def _fused(float8: Float8) -> Casts:
    scale_bytes = SCALE_BYTES.get(float8.recipe, 0.0)
    largest = (Step("amax", BF16_BYTES),) if float8.recipe == "tensorwise" else ()
    both = (*largest, Step("quantize", BF16_BYTES + 2 * (1 + scale_bytes)))
    once = (*largest, Step("quantize", BF16_BYTES + 1 + scale_bytes))
    if float8.gathered:
        return Casts(both, (), both, (), (TURNED,), once)
    return Casts(both, (), both, once, once, once)


def cast_kernels(passes: Passes, elements: float, scales: int, *, fixed: bool = False) -> tuple[Kernel, ...]:
    """One kernel a pass over so many *elements*; *fixed*: those of one expert's weights, whatever its rows."""
    if not passes:
        return ()
    found = [
        Kernel(step.kind, SCALE_FLOPS * elements if step.kind == "rescale" else 0.0,
               0.0 if fixed else elements * step.bytes, dtype=step.dtype,
               fixed_bytes=elements * step.bytes if fixed else 0.0)
        for step in passes
    ]  # fmt: skip
    small = _SMALL_KERNELS * scales
    if small:
        found.append(Kernel("elementwise", 0.0, float(small * 2 * FP32_BYTES), dtype="fp32", launches=small))
    return tuple(found)
