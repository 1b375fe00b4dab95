"""Linear layers in fp8: products on eight-bit operands, and the casts that each stack runs around them.

y = x W^T reads x and W along the inner width, the input's gradient reads dy along the outputs, the weight's gradient
reads x and dy along the tokens. `float8_casts` says which tensors are cast when, `float8_gathers` which of them travel
between tp ranks in fp8.

Casts are kernels of their own: no fusion with the norm or activation before them, nor with the gradient's last sum.
But for experts in Transformer Engine's fused grouped MLP: its first product applies the activation and casts what it
makes for the second, whose gradient of its input goes through the activation and is cast in the same way
(`ForwardGroupedMLP_CuTeGEMMSwiGLU_MXFP8`, `BackwardGroupedMLP_CuTeGEMMDSwiGLU_MXFP8`, NVIDIA/TransformerEngine#2769).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from simulator.model.float8 import DTYPES, SCALE_BYTES, Float8, aligned
from simulator.model.operator import Kernel, Operator, Saved, Workload
from simulator.model.operators.float8_casts import BF16_BYTES, TURNED, Casts, cast_kernels, casts_of
from simulator.model.operators.float8_dispatch import exchanged_in_float8
from simulator.model.operators.float8_gathers import beside_transfers, keeps_gathered, sent_in_float8, travelling
from simulator.model.operators.float8_row_scales import cast_by_rows, copied_back, rescaled, row_scales
from simulator.model.operators.float8_scales import cast_one_by_one, with_scales
from simulator.model.operators.lane import EXPERT_INPUT, FP32_BYTES

_PRODUCTS = ("gemm", "grouped_gemm")
_EAGER_TEMPORARIES_BYTES = 2 * FP32_BYTES
"""An element in fp32 before and behind a step of an eager cast."""


def in_float8(operators: Iterable[Operator], workload: Workload) -> tuple[Operator, ...]:
    """*operators* of a layer, with the linear layers that take part multiplying in fp8."""
    operators, float8 = tuple(operators), workload.float8
    if float8 is None:
        return operators
    casts, cast_already, takes_part = casts_of(float8, workload.execution), set[str](), _those_in(operators, float8)
    away, found = travelling(operators, takes_part, workload), []
    scales = row_scales(operators, takes_part, workload)
    for number, operator in enumerate(operators):
        if number in away.gathers | away.scatters:
            found.append(sent_in_float8(operator, casts, workload, back=number in away.scatters))
            continue
        if workload.fused_experts and operator.name == "experts_activation":
            found.append(replace(operator, forward=(), backward=()))
            continue
        if not takes_part[number]:
            operator = copied_back(operator, number, scales, workload)
            found.append(exchanged_in_float8(operator) if float8.dispatch else operator)
            continue
        again = workload.execution == "compiled" and operator.reads in cast_already
        own = replace(casts, forward=(), again=()) if again else casts
        if workload.fused_experts and operator.rows == "routed":
            own = _without_casts_between(operator, own)
        own = cast_by_rows(beside_transfers(own, number, away), number, scales)
        linear = rescaled(_linear(operator, float8, own), number, scales, workload)
        found.append(keeps_gathered(linear) if number in away.readers else linear)
        cast_already.add(operator.reads)
    return tuple(found)


def multiplies_in_float8(operator: Operator) -> bool:
    """Whether *operator* is a linear layer in fp8; its forward product is then the last forward kernel."""
    return bool(operator.reads) and operator.forward[-1].dtype in DTYPES.values()


def _those_in(operators: Iterable[Operator], float8: Float8) -> list[bool]:
    return [_takes_part(operator, float8) for operator in operators]


def _takes_part(operator: Operator, float8: Float8) -> bool:
    asked = float8.experts if operator.rows == "routed" else float8.dense
    return asked and bool(operator.reads) and aligned(*_widths(operator))


def _linear(operator: Operator, float8: Float8, casts: Casts) -> Operator:
    """The linear layer with its products in fp8, between casts."""
    dtype, fixed = DTYPES[float8.recipe], operator.rows == "routed"
    back = DTYPES["tensorwise"] if float8.recipe == "rowwise" and not fixed else dtype
    inner, outer = _widths(operator)
    rows = 1 if fixed else _product(operator.forward).shape[0]
    x, y, w = float(rows * inner), float(rows * outer), float(inner * outer)
    casts, scales = _own_casts(operator, float8, casts), casts.scales
    # A copy of a weight is there while the layer runs; of all experts together it is not counted.
    extra = (w if casts.weight and not fixed else 0.0) + (_EAGER_TEMPORARIES_BYTES * max(x, y) if scales else 0.0)
    turned = x if casts.again else 0.0
    cast = partial(cast_one_by_one, float8=float8) if fixed else cast_kernels
    forward = (*cast(casts.forward, x, scales), *cast(casts.weight, w, scales, fixed=fixed))
    backward = (*cast(casts.gradient, y, 2 * scales), *cast(casts.weight_again, w, scales, fixed=fixed))
    again = cast(casts.again, x, scales)
    gradient = _products(operator.backward_weight, back, weight_gradient=True)
    return replace(
        operator,
        forward=(*forward, *with_scales(_products(operator.forward, dtype), float8)),
        backward=(*backward, *with_scales(_products(operator.backward, back), float8)),
        backward_weight=(*again, *with_scales(gradient, float8)),
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
        return replace(casts, forward=(TURNED,))
    return replace(casts, gradient=(TURNED,))


def _without_casts_between(operator: Operator, casts: Casts) -> Casts:
    """*casts* of a product of experts, where the other product makes the fp8 copies of what lies between them."""
    return replace(casts, gradient=()) if operator.reads == EXPERT_INPUT else replace(casts, forward=())


def _kept(tensor: Saved, operator: Operator, float8: Float8) -> Saved:
    """What autograd keeps: its own fp8 copy of the input, or the input."""
    original = not float8.keeps_cast_input or tensor.name in float8.originals
    if tensor.name != operator.reads or original:
        return tensor
    share = (1 + SCALE_BYTES.get(float8.recipe, 0.0)) / BF16_BYTES
    return replace(tensor, name=f"{operator.name}.fp8", bytes=tensor.bytes * share)


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
