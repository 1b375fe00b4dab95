"""Products with weights in served formats: bytes of the format, arithmetic of the format or of bf16.

Experts, products of few rows and those with weights in other formats run as kernels of inference engines: those of
training are made for many rows. An input that several products read is cast once. What is cast by kernels of its own
here, engines often fuse with the norm or activation before it; that is not modelled.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.model.cache import BF16_BYTES
from simulator.model.float8 import aligned
from simulator.model.operator import Kernel, Operator
from simulator.model.operators.lane import EXPERT_INPUT, pointwise
from simulator.model.serving.formats import BF16, Formats, WeightFormat

FEW_ROWS = 64
"""Rows of the smallest tile that products of training come in: fewer lie along the narrow side of a tile while serving,
where nothing is padded to it."""
_CASTS = {"fp8/blockwise": "quantize_blocks", "int8": "quantize_rows", "fp4": "quantize_blocks"}
"""The kernel that casts activations for products of each arithmetic."""


def in_formats(operator: Operator, formats: Formats, native: frozenset[str], known: set[str]) -> Operator:
    """*operator* with its products in *formats*; *known* collects names of inputs that were cast.

    *native* are the accelerator's number formats. Rows travel to experts in fp8 where these multiply in it.
    """
    if operator.payload_bytes and operator.name == "dispatch":
        return _dispatched(operator, formats.experts, native, known)
    if operator.makes == EXPERT_INPUT and EXPERT_INPUT in known:
        return _sorted(operator, formats.experts)
    form = formats.experts if operator.rows == "routed" else formats.dense
    if not operator.reads or not _product(operator.forward[-1]):
        return operator
    *before, product = operator.forward
    if not aligned(*product.shape[-2:]):
        form = BF16
    casts = () if operator.reads in known else _casts(product, form, native)
    known.add(operator.reads)
    return replace(operator, forward=(*before, *casts, in_format(product, form, native)))


def arithmetic(form: WeightFormat, native: frozenset[str]) -> str:
    """Format of its products on a part with *native* arithmetic: weights are cast to bf16 where it lacks theirs."""
    return form.arithmetic if form.arithmetic.partition("/")[0] in native else "bf16"


def in_format(product: Kernel, form: WeightFormat, native: frozenset[str]) -> Kernel:
    """*product*, of bf16, on a weight in *form*. Results are in bf16."""
    computes = arithmetic(form, native)
    into_bytes = form.activation_bytes if computes != "bf16" else BF16_BYTES
    n, k = product.shape[-2:]
    weight = form.weight_bytes(n, k)
    if product.kind == "grouped_gemm":
        moved = k * into_bytes + n * BF16_BYTES
        return replace(product, kind="served_experts", bytes=moved, fixed_bytes=weight, dtype=computes)
    m = product.shape[0]
    kind = "gemm" if form is BF16 and m > FEW_ROWS else "served_gemm"
    return replace(product, kind=kind, bytes=m * k * into_bytes + weight + m * n * BF16_BYTES, dtype=computes)


def _product(kernel: Kernel) -> bool:
    return kernel.kind in ("gemm", "grouped_gemm")


def _casts(product: Kernel, form: WeightFormat, native: frozenset[str]) -> tuple[Kernel, ...]:
    """What casts the product's input; of one routed row where the product is of experts."""
    computes = arithmetic(form, native)
    if computes == "bf16":
        return ()
    rows = product.shape[0] if product.kind == "gemm" else 1
    moved = rows * product.shape[-1] * (BF16_BYTES + form.activation_bytes)
    return (pointwise(moved, kind=_CASTS[computes]),)


def _dispatched(operator: Operator, form: WeightFormat, native: frozenset[str], known: set[str]) -> Operator:
    """Rows on their way to experts that multiply in fp8: cast before they leave (DeepEP `use_fp8`).

    Its kernel is the cast of one token.
    """
    computes = arithmetic(form, native)
    if not computes.startswith("fp8"):
        return operator
    known.add(EXPERT_INPUT)
    row = operator.payload_bytes * form.activation_bytes / BF16_BYTES
    return replace(
        operator,
        forward=(pointwise(operator.payload_bytes + row, kind=_CASTS[computes]),),
        payload_bytes=row,
        output_bytes=row,
    )


def _sorted(operator: Operator, form: WeightFormat) -> Operator:
    """Rows put in the order of their experts as they came."""
    share = form.activation_bytes / BF16_BYTES
    *before, moving = operator.forward
    forward = (*before, replace(moving, bytes=moving.bytes * share))
    return replace(operator, forward=forward, output_bytes=operator.output_bytes * share)
