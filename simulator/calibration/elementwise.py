"""Kernels over contiguous elements: what share of the memory rate each sort attains, by size."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as f

from simulator.calibration.clock import point
from simulator.calibration.point import Point


def measure(shape: tuple[int]) -> Iterator[Point]:
    """Sums, products, casts, copies and fills of so many elements."""
    (n,) = shape
    half, other = (torch.randn(n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    full = torch.randn(n, device="cuda")
    calls = (
        ("elementwise", "bf16 + bf16", "bf16", 6.0, lambda: half + other),
        ("elementwise", "bf16 * bf16", "bf16", 6.0, lambda: half * other),
        ("elementwise", "silu bf16", "bf16", 4.0, lambda: f.silu(half)),
        ("elementwise", "fp32 pow 2", "fp32", 8.0, lambda: full.pow(2)),
        ("elementwise", "fp32 * fp32", "fp32", 8.0, lambda: full * full),
        ("cast_up", "bf16 -> fp32", "bf16", 6.0, lambda: half.float()),
        ("cast_down", "fp32 -> bf16", "bf16", 6.0, lambda: full.bfloat16()),
        ("copy", "copy bf16", "bf16", 4.0, lambda: half.clone()),
        ("fill", "fill bf16", "bf16", 2.0, lambda: half.zero_()),
        ("fill", "fill fp32", "fp32", 4.0, lambda: full.zero_()),
    )
    for kind, name, dtype, element_bytes, call in calls:
        yield point(kind, name, (n,), call, traffic=element_bytes * n, dtype=dtype)
