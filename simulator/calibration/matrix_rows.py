"""Kernels over rows of a matrix, with the broadcasts, strides and indices that models have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as f

from simulator.calibration.clock import point
from simulator.calibration.point import Point

WIDTH = 4096
HEAD = 128

Call = tuple[str, str, str, float, Callable[[], object]]
"""Kind, name, format, bytes an element, and what to call."""


def measure(shape: tuple[int]) -> Iterator[Point]:
    """Broadcasts, reductions, reorderings and indexing of so many rows."""
    (rows,) = shape
    x = torch.randn(rows, WIDTH, device="cuda", dtype=torch.bfloat16)
    for kind, name, dtype, element_bytes, call in (*_by_row(x), *_by_head(x), *_by_index(x)):
        yield point(kind, name, (rows, WIDTH), call, traffic=element_bytes * x.numel(), dtype=dtype)


def _by_row(x: torch.Tensor) -> tuple[Call, ...]:
    wide, scale = x.float(), torch.randn(len(x), 1, device="cuda")
    weight = torch.randn(WIDTH, device="cuda", dtype=torch.bfloat16)
    mask, into = scale < 0, x.clone()
    return (
        ("broadcast", "fp32 rows * column", "fp32", 8.0, lambda: wide * scale),
        ("broadcast", "bf16 rows * row", "bf16", 4.0, lambda: x * weight),
        ("masked_fill", "masked_fill in place", "bf16", 4.0, lambda: into.masked_fill_(mask, 0.0)),
        ("reduction", "mean of fp32 rows", "fp32", 4.0, lambda: wide.mean(-1, keepdim=True)),
        ("reduction", "sum of bf16 columns", "bf16", 2.0, lambda: x.sum(0)),
        ("norm", "rms_norm bf16", "bf16", 4.0, lambda: f.rms_norm(x, (WIDTH,), weight)),
    )


def _by_head(x: torch.Tensor) -> tuple[Call, ...]:
    heads = x.view(1, len(x), WIDTH // HEAD, HEAD).transpose(1, 2)
    angles = torch.randn(1, 1, len(x), HEAD, device="cuda", dtype=torch.bfloat16)
    left, right = heads[..., : HEAD // 2], heads[..., HEAD // 2 :]
    return (
        ("elementwise", "transposed heads * heads", "bf16", 4.0, lambda: heads * heads),
        ("broadcast", "transposed heads * rows", "bf16", 4.0, lambda: heads * angles),
        ("broadcast", "negated half heads", "bf16", 2.0, lambda: -right),
        ("transpose", "transposed heads", "bf16", 4.0, heads.contiguous),
        ("cat", "cat of half heads", "bf16", 4.0, lambda: torch.cat((right, left), -1)),
    )


def _by_index(x: torch.Tensor) -> tuple[Call, ...]:
    index, into = torch.randperm(len(x), device="cuda"), torch.zeros_like(x)
    return (
        ("gather", "rows by index", "bf16", 4.0, lambda: x[index]),
        ("gather", "index_select", "bf16", 4.0, lambda: x.index_select(0, index)),
        ("scatter", "index_add", "bf16", 6.0, lambda: into.index_add_(0, index, x)),
        (
            "scatter_put",
            "index_put accumulate, sorted first",
            "bf16",
            6.0,
            lambda: into.index_put_((index,), x, accumulate=True),
        ),
    )
