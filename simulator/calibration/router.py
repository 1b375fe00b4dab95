"""What routing needs beside its gemm: softmax, top-k, sorting of choices."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from simulator.calibration.clock import point
from simulator.calibration.point import Point


def measure(shape: tuple[int, int, int]) -> Iterator[Point]:
    """Softmax and top-k of tokens over experts, then the sort of the chosen ones."""
    tokens, experts, top_k = shape
    scores = torch.randn(tokens, experts, device="cuda")
    chosen = torch.randint(0, experts, (tokens * top_k,), device="cuda")
    n = float(tokens * experts)
    calls = (
        ("softmax", "softmax fp32", "fp32", 8.0 * n, lambda: scores.softmax(-1)),
        ("topk", "topk fp32", "fp32", 4.0 * n + 12.0 * tokens * top_k, lambda: scores.topk(top_k, -1)),
        ("sort", "argsort int64", "int64", 24.0 * tokens * top_k, chosen.argsort),
    )
    for kind, name, dtype, traffic, call in calls:
        yield point(kind, name, shape, call, traffic=traffic, dtype=dtype)
