"""Grouped matrix products: the experts of one rank, few or many rows each, even or skewed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from simulator.calibration.clock import point
from simulator.calibration.point import Point

EXPERTS = (
    (14, 3584, 6144), (14, 3072, 3584), (16, 7168, 4096), (32, 2048, 1536), (128, 2048, 1536), (128, 768, 2048),
    (8, 4096, 28672),
)  # fmt: skip
"""(experts on the rank, K, N) of a layer's first or second product."""
ROWS = (16, 64, 128, 300, 512, 1024, 2048, 4096)
"""Mean rows of an expert."""
SKEW = 0.5
"""Standard deviation of the log of rows in the skewed cases: some experts get several times others' rows."""
MOST_FLOPS = 1e13


def measure(*, quick: bool = False) -> Iterator[Point]:
    """Forward, gradient of the rows and gradient of the weights, by mean rows of an expert."""
    for experts, inner, out in EXPERTS[:2] if quick else EXPERTS:
        for rows in ROWS[::3] if quick else ROWS:
            if 2.0 * experts * rows * inner * out <= MOST_FLOPS:
                yield from _shape(experts, rows, (inner, out), skew=0.0)
                yield from _shape(experts, rows, (inner, out), skew=SKEW)


def _rows(experts: int, mean: int, skew: float) -> torch.Tensor:
    """Rows of each expert, log-normal with a seed of the case's own; at least one each."""
    generator = torch.Generator().manual_seed(experts * mean)
    weights = torch.exp(torch.randn(experts, generator=generator) * skew)
    return torch.clamp((weights / weights.sum() * experts * mean).round().to(torch.int32), min=1)


def _shape(experts: int, mean_rows: int, sides: tuple[int, int], *, skew: float) -> Iterator[Point]:
    rows, (inner, out) = _rows(experts, mean_rows, skew), sides
    counts = tuple(rows.tolist())
    total = sum(counts)
    flops = 2.0 * total * inner * out
    traffic = 2.0 * (total * (inner + out) + experts * inner * out)
    shape = (experts, mean_rows, inner, out, max(counts))
    label = "skewed" if skew else "even"
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
