"""Grouped matrix products: the experts of one rank, few or many rows each, even or skewed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from simulator.calibration.clock import point
from simulator.calibration.point import Point

SKEW = 0.5
"""Standard deviation of the log of rows in the skewed cases: some experts get several times others' rows."""


def _rows(experts: int, mean: int, skew: float) -> torch.Tensor:
    """Rows of each expert, log-normal with a seed of the case's own; at least one each."""
    generator = torch.Generator().manual_seed(experts * mean)
    weights = torch.exp(torch.randn(experts, generator=generator) * skew)
    return torch.clamp((weights / weights.sum() * experts * mean).round().to(torch.int32), min=1)


def measure(sizes: tuple[int, int, int, int, str]) -> Iterator[Point]:
    """Forward, gradient of the rows and gradient of the weights: experts, mean rows, K, N, even or skewed."""
    experts, mean_rows, inner, out, label = sizes
    rows = _rows(experts, mean_rows, SKEW if label == "skewed" else 0.0)
    counts = tuple(rows.tolist())
    total = sum(counts)
    flops = 2.0 * total * inner * out
    traffic = 2.0 * (total * (inner + out) + experts * inner * out)
    shape = (experts, mean_rows, inner, out, max(counts))
    for name, call in _calls(rows, inner, out).items():
        backward = name.startswith("d")
        yield point(
            "grouped_gemm",
            f"{name}, {label}",
            shape,
            call,
            flops=flops,
            traffic=traffic,
            backward=backward,
            rows=counts,
        )


def _calls(rows: torch.Tensor, inner: int, out: int) -> dict[str, Callable[[], object]]:
    total, ends = int(rows.sum()), torch.cumsum(rows, 0, dtype=torch.int32).cuda()
    x, w, dy = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((total, inner), (len(rows), inner, out), (total, out))
    )
    product = torch._grouped_mm
    return {
        "y = x W": lambda: product(x, w, offs=ends),
        "dx = dy W^T": lambda: product(dy, w.transpose(1, 2), offs=ends),
        "dW = x^T dy": lambda: product(x.T, dy, offs=ends),
    }
