"""Matrix products in fp8 through the framework's own operators, by how finely operands are scaled.

One scale a tensor, one a row, and scales of 1 x 128 by 128 x 128 blocks; grouped ones with a scale a row. Operands are
normally distributed, since what a chip at its power limit does depends on the bits; scales are ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from simulator.calibration.clock import point
from simulator.calibration.point import Point

E4M3 = torch.float8_e4m3fn
BLOCK = 128

Scales = tuple[str, str, bool, torch.Tensor, torch.Tensor]
"""Name, format, whether sums stay in the tensor cores, and the scales of the operands."""


def measure(sizes: tuple[int, ...]) -> Iterator[Point]:
    """The product of (m, n, k), or of (experts, rows of each, n, k)."""
    yield from _dense(*sizes) if len(sizes) == 3 else _grouped(*sizes)


def _dense(m: int, n: int, k: int) -> Iterator[Point]:
    a, b = _operand(m, k), _operand(n, k).t()
    flops, traffic = 2.0 * m * n * k, m * k + k * n + 2.0 * m * n
    for name, dtype, fast, left, right in _scales(m, n, k):

        def call(left: torch.Tensor = left, right: torch.Tensor = right, fast: bool = fast) -> object:
            return torch._scaled_mm(a, b, left, right, out_dtype=torch.bfloat16, use_fast_accum=fast)

        # Gradients are what frameworks accumulate exactly; the other scales do not differ by direction.
        backward = name.endswith("tensorwise, exact")
        label = f"{name} accumulation" if name.endswith("exact") else name
        yield point("gemm", label, (m, n, k), call, flops=flops, traffic=traffic, dtype=dtype, backward=backward)


def _grouped(experts: int, rows: int, n: int, k: int) -> Iterator[Point]:
    a = _operand(experts * rows, k)
    b = _operand(experts * n, k).view(experts, n, k).transpose(-2, -1)
    left, right = torch.ones(experts * rows, device="cuda"), torch.ones(experts, n, device="cuda")
    ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * rows
    flops, traffic = 2.0 * experts * rows * n * k, experts * (rows * (k + 2.0 * n) + n * k)
    shape, each = (experts, rows, k, n, rows), (rows,) * experts

    def call() -> object:
        return torch._scaled_grouped_mm(a, b, left, right, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True)

    name, dtype = "y = x W, fp8 rowwise", "fp8/rowwise"
    yield point("grouped_gemm", name, shape, call, flops=flops, traffic=traffic, dtype=dtype, rows=each)


def _operand(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16).to(E4M3)


def _scales(m: int, n: int, k: int) -> tuple[Scales, ...]:
    one, steps = torch.ones((), device="cuda"), k // BLOCK
    rows, columns = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
    blocks = torch.ones(steps, m, device="cuda").t(), torch.ones(-(-n // BLOCK), steps, device="cuda").t()
    return (
        ("fp8 tensorwise", "fp8", True, one, one),
        ("fp8 tensorwise, exact", "fp8", False, one, one),
        ("fp8 rowwise", "fp8/rowwise", True, rows, columns),
        ("fp8 rowwise, exact", "fp8/rowwise", False, rows, columns),
        ("fp8 blockwise", "fp8/blockwise", False, *blocks),
    )
