"""Linear layers in fp8: products on eight-bit operands, and the casts that each stack runs around them.

y = x W^T reads x and W along the inner width, the input's gradient reads dy along the outputs, the weight's gradient
reads x and dy along the tokens. Which tensors are cast when:

- torchao, eager or compiled (`float8_linear.py`, `matmul_with_hp_or_float8_args`): autograd keeps x and W as they are;
  forward casts both, backward casts both again and dy. A compiler makes one or two kernels of each cast, and casts an
  input that several layers share once. With one scale a tensor it keeps scales from forward to backward.
- Transformer Engine (fused): one kernel makes both copies of x, and of dy; autograd keeps the copy of x that the
  weight's gradient reads, one byte an element. Scales of the tensor itself cost a pass for its largest value, delayed
  ones none. An input that Megatron-LM recomputes is kept as it is (`set_save_original_input`) and cast again backward.

Casts are kernels of their own: no fusion with the norm or activation before them, nor with the gradient's last sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from simulator.model.float8 import DTYPES, SCALE_BYTES, Float8, aligned
from simulator.model.operator import Execution, Kernel, Operator, Saved, Workload
from simulator.model.operators.float8_dispatch import exchanged_in_float8
from simulator.model.operators.lane import EXPERT_INPUT, FP32_BYTES, Step

BF16_BYTES = 2
_PRODUCTS = ("gemm", "grouped_gemm")
_SMALL_KERNELS = 6
"""From a largest value to a scale, eager: to fp64, cut off, divided, to fp32, rounded to a power of two."""
_EAGER_TEMPORARIES_BYTES = 2 * FP32_BYTES
"""An element in fp32 before and behind a step of an eager cast."""
_TURNED = Step("quantize", 2)
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


def in_float8(operators: Iterable[Operator], workload: Workload) -> tuple[Operator, ...]:
    """*operators* of a layer, with the linear layers that take part multiplying in fp8."""
    operators, float8 = tuple(operators), workload.float8
    if float8 is None:
        return operators
    casts, cast_already = casts_of(float8, workload.execution), set[str]()
    found = []
    for operator in operators:
        if not _takes_part(operator, float8):
            found.append(exchanged_in_float8(operator) if float8.dispatch else operator)
            continue
        again = workload.execution == "compiled" and operator.reads in cast_already
        found.append(_linear(operator, float8, replace(casts, forward=(), again=()) if again else casts))
        cast_already.add(operator.reads)
    return tuple(found)


def multiplies_in_float8(operator: Operator) -> bool:
    """Whether *operator* is a linear layer in fp8; its forward product is then the last forward kernel."""
    return bool(operator.reads) and operator.forward[-1].dtype in DTYPES.values()


def _takes_part(operator: Operator, float8: Float8) -> bool:
    asked = float8.experts if operator.rows == "routed" else float8.dense
    return asked and bool(operator.reads) and aligned(*_widths(operator))


def casts_of(float8: Float8, execution: Execution) -> Casts:
    """The casts of the stack that *execution* stands for."""
    by_stack = {"eager": _eager, "compiled": _compiled, "fused": _fused}
    casts = by_stack[execution](float8)
    if float8.kept:
        return replace(casts, weight=(), weight_again=())
    return casts


def once_a_step(float8: Float8) -> Passes:
    """The passes that make both copies of a weight that is kept; of one that was gathered, the other copy."""
    return (_TURNED,) if float8.gathered else _fused(float8).gradient


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
        return Casts(both, (), both, (), (_TURNED,), once)
    return Casts(both, (), both, once, once, once)


def _linear(operator: Operator, float8: Float8, casts: Casts) -> Operator:
    """The linear layer with its products in fp8, between casts."""
    dtype, fixed = DTYPES[float8.recipe], operator.rows == "routed"
    inner, outer = _widths(operator)
    rows = 1 if fixed else _product(operator.forward).shape[0]
    x, y, w = float(rows * inner), float(rows * outer), float(inner * outer)
    casts, scales = _own_casts(operator, float8, casts), casts.scales
    # A copy of a weight is there while the layer runs; of all experts together it is not counted.
    extra = (w if casts.weight and not fixed else 0.0) + (_EAGER_TEMPORARIES_BYTES * max(x, y) if scales else 0.0)
    turned = x if casts.again else 0.0
    return replace(
        operator,
        forward=(
            *_kernels(casts.forward, x, scales),
            *_kernels(casts.weight, w, scales, fixed=fixed),
            *_products(operator.forward, dtype),
        ),
        backward=(
            *_kernels(casts.gradient, y, 2 * scales),
            *_kernels(casts.weight_again, w, scales, fixed=fixed),
            *_products(operator.backward, dtype),
        ),
        backward_weight=(
            *_kernels(casts.again, x, scales),
            *_products(operator.backward_weight, dtype, weight_gradient=True),
        ),
        saved=tuple(_kept(tensor, operator, float8) for tensor in operator.saved),
        workspace_bytes=operator.workspace_bytes + x + extra,
        backward_workspace_bytes=operator.backward_workspace_bytes + 2 * y + turned + extra,
    )


def _own_casts(operator: Operator, float8: Float8, casts: Casts) -> Casts:
    """*casts* where an input is kept as it is, and of experts whose rows arrive in fp8.

    Those are turned, not cast: the input of the first product, the gradient of the last one's result.
    """
    if operator.reads in float8.originals:
        casts = replace(casts, forward=casts.once, again=casts.once)
    if not float8.dispatch or operator.rows != "routed":
        return casts
    if operator.reads == EXPERT_INPUT:
        return replace(casts, forward=(_TURNED,))
    return replace(casts, gradient=(_TURNED,))


def _kept(tensor: Saved, operator: Operator, float8: Float8) -> Saved:
    """What autograd keeps: its own fp8 copy of the input, or the input."""
    original = not float8.keeps_cast_input or tensor.name in float8.originals
    if tensor.name != operator.reads or original:
        return tensor
    share = (1 + SCALE_BYTES.get(float8.recipe, 0.0)) / BF16_BYTES
    return replace(tensor, name=f"{operator.name}.fp8", bytes=tensor.bytes * share)


def _kernels(passes: Passes, elements: float, scales: int, *, fixed: bool = False) -> tuple[Kernel, ...]:
    """One kernel a pass over so many *elements*; *fixed*: those of one expert's weights, whatever its rows."""
    if not passes:
        return ()
    found = [
        Kernel(step.kind, 0.0, 0.0 if fixed else elements * step.bytes, dtype=step.dtype,
               fixed_bytes=elements * step.bytes if fixed else 0.0)
        for step in passes
    ]  # fmt: skip
    small = _SMALL_KERNELS * scales
    if small:
        found.append(Kernel("elementwise", 0.0, float(small * 2 * FP32_BYTES), dtype="fp32", launches=small))
    return tuple(found)


def _products(kernels: tuple[Kernel, ...], dtype: str, *, weight_gradient: bool = False) -> tuple[Kernel, ...]:
    """*kernels* with products on operands of one byte; results stay bf16."""
    return tuple(_narrow(k, dtype, weight_gradient=weight_gradient) if k.kind in _PRODUCTS else k for k in kernels)


def _narrow(kernel: Kernel, dtype: str, *, weight_gradient: bool) -> Kernel:
    if kernel.kind == "gemm":
        m, n, k = kernel.shape
        return replace(kernel, dtype=dtype, bytes=float(m * k + k * n + BF16_BYTES * m * n))
    n, k = kernel.shape
    result = BF16_BYTES if weight_gradient else 1
    row = n + k if weight_gradient else k + BF16_BYTES * n
    return replace(kernel, dtype=dtype, bytes=float(row), fixed_bytes=float(result * n * k))


def _product(kernels: tuple[Kernel, ...]) -> Kernel:
    return next(kernel for kernel in kernels if kernel.kind in _PRODUCTS)


def _widths(operator: Operator) -> tuple[int, int]:
    """(inner, outer) width of a linear layer."""
    outer, inner = _product(operator.forward).shape[-2:]
    return inner, outer
