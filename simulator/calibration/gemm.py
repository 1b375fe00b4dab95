"""Dense matrix products of the shapes that layers have: y = x W^T forward, and both products of the backward pass."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from simulator.calibration.clock import point
from simulator.calibration.point import Point

LAYOUTS = ("y = x W^T", "dx = dy W", "dW = dy^T x")


def measure(sizes: tuple[int, int, int]) -> Iterator[Point]:
    """Each layout of so many rows, outputs and inputs."""
    rows, out, inner = sizes
    x, w, dy = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((rows, inner), (out, inner), (rows, out)))
    calls = (lambda: x @ w.T, lambda: dy @ w, lambda: dy.T @ x)
    shapes = ((rows, out, inner), (rows, inner, out), (out, inner, rows))
    flops, traffic = 2.0 * rows * out * inner, 2.0 * (rows * inner + out * inner + rows * out)
    for name, shape, call in zip(LAYOUTS, shapes, calls, strict=True):
        yield point("gemm", name, shape, call, flops=flops, traffic=traffic, backward=name != LAYOUTS[0])
