"""Launches around MXFP8 that the device hardly notices: scales put in the order in which tensor cores read them.

cuBLAS wants the scales of both operands in tiles of 128 x 4. Transformer Engine's casts write them row by row, and each
product reorders those of its two operands first, in a kernel for each tensor (`swizzle_scales_for_gemm`); for the
tensors that a group of products has in common it is one kernel from version 2.7 on (NVIDIA/TransformerEngine#2019), and
before that the room of each cast's two sets of scales was set to zero by a kernel of its own, too (#1793, #1934). Casts
of 2026 write scales as products read them (`with_gemm_swizzled_scales`).

Experts' rows are cast expert by expert, but by scales of earlier steps, which one kernel takes for all of them
(`multi_tensor_quantize_impl`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from simulator.model.float8 import SCALE_BYTES, Float8
from simulator.model.operator import Kernel
from simulator.model.operators.float8_casts import BF16_BYTES, TURNED, Passes, cast_kernels

_OPERANDS = 2
_SCALE_BYTES = SCALE_BYTES["mxfp8"]


def cast_one_by_one(
    passes: Passes, elements: float, scales: int, float8: Float8, *, fixed: bool = False
) -> tuple[Kernel, ...]:
    """`cast_kernels` of experts' rows or weights, as Transformer Engine launches them."""
    alone = float8.recipe != "delayed"
    zeros = _zeros(passes, elements, fixed=fixed) if float8.scales == "one_by_one" else ()
    return tuple(
        replace(kernel, each=alone) for kernel in (*zeros, *cast_kernels(passes, elements, scales, fixed=fixed))
    )


def with_scales(kernels: Iterable[Kernel], float8: Float8) -> Iterator[Kernel]:
    """*kernels*, and before each product what reorders the scales of its operands."""
    for kernel in kernels:
        if float8.scales not in (None, "as_cast") and kernel.kind in ("gemm", "grouped_gemm"):
            yield _reordered(kernel, each=float8.scales == "one_by_one")
        yield kernel


def _zeros(passes: Passes, elements: float, *, fixed: bool) -> Iterator[Kernel]:
    """The zeros in the room of a cast's scales, a set for each fp8 copy that it makes of so many *elements*."""
    for step in passes:
        copies = 1 if step == TURNED else round((step.bytes - BF16_BYTES) / (1 + _SCALE_BYTES))
        moved = copies * _SCALE_BYTES * elements
        yield Kernel("fill", 0.0, 0.0 if fixed else moved, fixed_bytes=moved if fixed else 0.0, launches=copies)


def _reordered(product: Kernel, *, each: bool) -> Kernel:
    """Scales are read and written: of (m, k) and (k, n), or of a routed row and an expert's weights."""
    if product.kind == "gemm":
        m, n, k = product.shape
        return Kernel("elementwise", 0.0, 2 * _SCALE_BYTES * (m * k + k * n), launches=_OPERANDS)
    n, k = product.shape
    row, fixed = 2 * _SCALE_BYTES * k, 2 * _SCALE_BYTES * n * k
    return Kernel("elementwise", 0.0, row, fixed_bytes=fixed, launches=_OPERANDS, each=each)
