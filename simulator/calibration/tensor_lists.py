"""Kernels over lists of tensors: optimizers, and the copies that FSDP makes of sharded parameters and gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from simulator.calibration.clock import point
from simulator.calibration.point import Point

SHAPES = ((4096, 4096),) * 4 + ((14336, 4096),) * 3 + ((4096,),) * 2
"""Of a layer's parameters."""
RANKS = 8
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measure(shape: tuple[str, str]) -> Iterator[Point]:
    """AdamW in a format, fused and in passes, or the copies."""
    what, name = shape
    yield from _optimizers(name) if what == "adamw" else _copies()


def _elements() -> int:
    return sum(torch.Size(shape).numel() for shape in SHAPES)


def _optimizers(name: str) -> Iterator[Point]:
    n, dtype = _elements(), FORMATS[name]
    for kind, fused in (("optimizer", True), ("optimizer_foreach", False)):
        weights = [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in SHAPES]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        step = torch.optim.AdamW(weights, fused=fused).step
        label = f"adamw {name} {'fused' if fused else 'foreach'}"
        yield point(kind, label, (n,), step, traffic=7.0 * dtype.itemsize * n, dtype=name)


def _copies() -> Iterator[Point]:
    n, sizes = _elements(), [torch.Size(shape).numel() // RANKS for shape in SHAPES]
    gradients = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in SHAPES]
    chunks = torch.empty(RANKS, n // RANKS, device="cuda")

    def chunk() -> object:
        return torch._chunk_cat(gradients, 0, RANKS, out=chunks)

    yield point("chunk_cat", "chunk_cat bf16 -> fp32", (n,), chunk, traffic=6.0 * n)
    flat = torch.randn(RANKS, n // RANKS, device="cuda").bfloat16()
    parts = [torch.empty(RANKS, size, device="cuda", dtype=torch.bfloat16) for size in sizes]

    def split() -> object:
        return torch.split_with_sizes_copy(flat, sizes, dim=1, out=parts)

    yield point("split_copy", "split_with_sizes_copy", (n,), split, traffic=4.0 * n)
