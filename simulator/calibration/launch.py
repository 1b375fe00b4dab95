"""What the host needs to launch kernels, and what the clock itself takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from simulator.calibration.clock import point
from simulator.calibration.point import Point

CALLS = 2000


def measure(*, quick: bool = False) -> Iterator[Point]:
    """Device time of a call that does nothing; then host seconds per call of small operators, the last two with
    autograd recording.
    """
    yield point("launch", "clock", (), lambda: None)
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    calls: dict[str, Callable[[], object]] = {
        "add": lambda: x + x,
        "mul recorded": lambda: x * w,
        "matmul recorded": lambda: x @ w,
    }
    for name, call in calls.items():
        seconds = _host_time(call, CALLS // 4 if quick else CALLS)
        yield Point("launch", name, (), "bf16", 0.0, 0.0, seconds, seconds, seconds)


def _host_time(call: Callable[[], object], calls: int) -> float:
    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = (time.perf_counter() - begin) / calls
    torch.cuda.synchronize()
    return seconds
