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

_OPERANDS = 2
_SCALE_BYTES = SCALE_BYTES["mxfp8"]


def cast_one_by_one(kernels: Iterable[Kernel], float8: Float8) -> tuple[Kernel, ...]:
    """Casts of experts' rows or weights, as Transformer Engine launches them."""
    alone = float8.recipe != "delayed"
    return tuple(replace(kernel, each=alone) for kernel in _with_zeros(kernels, float8))


def with_scales(kernels: Iterable[Kernel], float8: Float8) -> Iterator[Kernel]:
    """*kernels*, and before each product what reorders the scales of its operands."""
    for kernel in kernels:
        if float8.scales not in (None, "as_cast") and kernel.kind in ("gemm", "grouped_gemm"):
            yield _reordered(kernel, each=float8.scales == "one_by_one")
        yield kernel


def _with_zeros(kernels: Iterable[Kernel], float8: Float8) -> Iterator[Kernel]:
    """Before a cast, the zeros in the room of both sets of scales."""
    for kernel in kernels:
        if float8.scales == "one_by_one" and kernel.kind == "quantize":
            moved = kernel.bytes * _SCALE_BYTES / 2, kernel.fixed_bytes * _SCALE_BYTES / 2
            yield Kernel("fill", 0.0, moved[0], fixed_bytes=moved[1], launches=_OPERANDS)
        yield kernel


def _reordered(product: Kernel, *, each: bool) -> Kernel:
    """Scales are read and written: of (m, k) and (k, n), or of a routed row and an expert's weights."""
    if product.kind == "gemm":
        m, n, k = product.shape
        return Kernel("elementwise", 0.0, 2 * _SCALE_BYTES * (m * k + k * n), launches=_OPERANDS)
    n, k = product.shape
    row, fixed = 2 * _SCALE_BYTES * k, 2 * _SCALE_BYTES * n * k
    return Kernel("elementwise", 0.0, row, fixed_bytes=fixed, launches=_OPERANDS, each=each)
