"""How long matmuls and attention take within a step, where the part is at its power limit.

The kernels of a layer run in a row for seconds: products, attention, a product of experts, and passes over memory
between them, in about the proportions of a dense layer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as f

from simulator.calibration.layer import EXPERT_ROWS, EXPERTS, HEAD, HEADS, HIDDEN, REPEATED, ROWS, WIDE
from simulator.calibration.point import Point

PASSES = 24
WARM_UP_S, TIMED_LAYERS = 2.0, 40

Call = Callable[[], object]


def measure(shape: tuple[str]) -> Iterator[Point]:
    """Of the one layer that there is: seconds of each group of kernels."""
    del shape
    groups = _groups()
    begun = time.monotonic()
    while time.monotonic() - begun < WARM_UP_S:
        for call in groups.values():
            call()
        torch.cuda.synchronize()
    for kind, times in _within(groups).items():
        yield Point("sustained", f"{kind} within", (1,), "bf16", 0.0, 0.0, *times)


def _groups() -> dict[str, Call]:
    x, wide = (torch.randn(ROWS, n, device="cuda", dtype=torch.bfloat16) for n in (HIDDEN, WIDE))
    w = torch.randn(WIDE, HIDDEN, device="cuda", dtype=torch.bfloat16)
    qkv = [torch.randn(1, HEADS, ROWS, HEAD, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    gradient = torch.randn(1, HEADS, ROWS, HEAD, device="cuda", dtype=torch.bfloat16)
    rows = torch.randn(EXPERTS * EXPERT_ROWS, HIDDEN, device="cuda", dtype=torch.bfloat16)
    experts = torch.randn(EXPERTS, HIDDEN, HIDDEN, device="cuda", dtype=torch.bfloat16)
    ends = torch.arange(1, EXPERTS + 1, device="cuda", dtype=torch.int32) * EXPERT_ROWS

    def gemm() -> None:
        for _ in range(REPEATED):
            x @ w.T, wide @ w, wide.T @ x

    def attention() -> object:
        return torch.autograd.grad(f.scaled_dot_product_attention(*qkv, is_causal=True), qkv, gradient)

    def grouped() -> object:
        return torch._grouped_mm(rows, experts, offs=ends)

    def passes() -> None:
        for _ in range(PASSES):
            torch.add(wide, wide)

    return {"gemm": gemm, "elementwise": passes, "attention": attention, "grouped_gemm": grouped}


def _within(groups: dict[str, Call]) -> dict[str, tuple[float, float, float]]:
    """(median, 10th, 90th percentile) of the seconds of each group in a row of layers without a pause."""
    marks: list[dict[str, tuple[torch.cuda.Event, torch.cuda.Event]]] = []
    for _ in range(TIMED_LAYERS):
        layer = {}
        for kind, call in groups.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            layer[kind] = begin, end
        marks.append(layer)
    torch.cuda.synchronize()
    found = {}
    for kind in groups:
        times = sorted(begin.elapsed_time(end) / 1e3 for begin, end in (layer[kind] for layer in marks))
        found[kind] = statistics.median(times), times[len(times) // 10], times[-1 - len(times) // 10]
    return found
