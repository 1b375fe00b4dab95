"""Dense matrix products of the shapes that layers have: y = x W^T forward, and both products of the backward pass."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from simulator.calibration.clock import point
from simulator.calibration.point import Point

WIDTHS = (
    (1024, 1024), (1536, 7168), (2048, 2048), (2048, 8192), (4096, 1024), (4096, 4096), (4096, 14336), (6144, 7168),
    (7168, 2048), (7168, 12288), (8192, 8192), (8192, 28672), (14336, 4096), (16384, 16384), (32000, 4096),
    (128256, 2048), (128256, 4096), (163840, 7168), (8, 7168), (7168, 8), (128, 7168), (512, 4096),
)  # fmt: skip
"""(out, in) of the weights."""
ROWS = (16, 128, 512, 1024, 2048, 4096, 8192, 16384)
LAYOUTS = ("y = x W^T", "dx = dy W", "dW = dy^T x")
MOST_FLOPS = 1e13
"""Larger products tell nothing new."""


def measure(*, quick: bool = False) -> Iterator[Point]:
    """Every width at every number of rows in each layout; *quick* leaves out most rows."""
    for out, inner in WIDTHS:
        for rows in ROWS[1::3] if quick else ROWS:
            if 2.0 * rows * out * inner <= MOST_FLOPS:
                yield from _shape(rows, out, inner)


def _shape(rows: int, out: int, inner: int) -> Iterator[Point]:
    x, w, dy = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((rows, inner), (out, inner), (rows, out)))
    calls = (lambda: x @ w.T, lambda: dy @ w, lambda: dy.T @ x)
    shapes = ((rows, out, inner), (rows, inner, out), (out, inner, rows))
    flops, traffic = 2.0 * rows * out * inner, 2.0 * (rows * inner + out * inner + rows * out)
    for name, shape, call in zip(LAYOUTS, shapes, calls, strict=True):
        yield point("gemm", name, shape, call, flops=flops, traffic=traffic, backward=name != LAYOUTS[0])
