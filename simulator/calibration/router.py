"""What routing needs beside its gemm: softmax, top-k, sorting of choices."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from simulator.calibration.clock import point
from simulator.calibration.point import Point

SHAPES = ((8192, 128, 8), (8192, 256, 8), (8192, 896, 16), (16384, 64, 8), (8192, 8, 2))
"""(tokens, experts, top-k)."""


def measure(*, quick: bool = False) -> Iterator[Point]:
    """Softmax and top-k over experts, then the sort of the chosen ones."""
    for tokens, experts, top_k in SHAPES[:1] if quick else SHAPES:
        yield from _of_shape(tokens, experts, top_k)


def _of_shape(tokens: int, experts: int, top_k: int) -> Iterator[Point]:
    scores = torch.randn(tokens, experts, device="cuda")
    chosen = torch.randint(0, experts, (tokens * top_k,), device="cuda")
    shape, n = (tokens, experts, top_k), float(tokens * experts)
    calls = (
        ("softmax", "softmax fp32", "fp32", 8.0 * n, lambda: scores.softmax(-1)),
        ("topk", "topk fp32", "fp32", 4.0 * n + 12.0 * tokens * top_k, lambda: scores.topk(top_k, -1)),
        ("sort", "argsort int64", "int64", 24.0 * tokens * top_k, chosen.argsort),
    )
    for kind, name, dtype, traffic, call in calls:
        yield point(kind, name, shape, call, traffic=traffic, dtype=dtype)
