"""What the host needs to launch kernels and to replay graphs, and what the clock itself takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch

from simulator.calibration.clock import device_time, point
from simulator.calibration.point import Point

CALLS = 2000
ROUNDS = 5
IN_GRAPH = 100
"""Kernels of the longer graph."""
SMALL = 2**16
"""Elements of a kernel that is nearly all start and end."""


def measure(shape: tuple[str]) -> Iterator[Point]:
    """One of the parts that `simulator.calibration.plan` names."""
    yield from {"clock": _clock, "host": _host, "graph": _graph, "profiled": _profiled}[shape[0]]()


def _clock() -> Iterator[Point]:
    """Device time of a call that does nothing."""
    yield point("launch", "clock", (), lambda: None)


def _host() -> Iterator[Point]:
    """Host seconds of each call of small operators, the last two with autograd recording."""
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    calls: dict[str, Callable[[], object]] = {
        "add": lambda: x + x,
        "mul recorded": lambda: x * w,
        "matmul recorded": lambda: x @ w,
    }
    for name, call in calls.items():
        yield Point("launch", name, (), "bf16", 0.0, 0.0, *_host_times(call, CALLS // ROUNDS))


def _graph() -> Iterator[Point]:
    """Host seconds of replaying a graph of one kernel, and device seconds of each kernel in a long one."""
    x = torch.randn(SMALL, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)
    for kernels in (1, IN_GRAPH):
        torch.add(x, x, out=out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(kernels):
                torch.add(x, x, out=out)
        shape = (kernels,)
        if kernels == 1:
            yield Point("launch", "graph replay, host", shape, "bf16", 0.0, 0.0, *_host_times(graph.replay, 200))
        median, low, high = (found / kernels for found in device_time(graph.replay))
        yield Point("launch", "graph replay, device, a kernel", shape, "bf16", 0.0, 6.0 * SMALL, median, low, high)


def _profiled() -> Iterator[Point]:
    """A small kernel timed alone, and what the profiler says it takes among others, as within a step."""
    x = torch.randn(SMALL, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)

    def call() -> object:
        return torch.add(x, x, out=out)

    yield point("launch", "small kernel, timed alone", (SMALL,), call, traffic=6.0 * SMALL)
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(IN_GRAPH):
            call()
        torch.cuda.synchronize()
    times = sorted(event.device_time / 1e6 for event in profiler.events() if event.device_time > 0)
    if times:
        kept = statistics.median(times), times[len(times) // 10], times[-1 - len(times) // 10]
        yield Point("launch", "small kernel, profiled", (SMALL,), "bf16", 0.0, 6.0 * SMALL, *kept)


def _host_times(call: Callable[[], object], calls: int) -> tuple[float, float, float]:
    """(median, least, most) of the host seconds a call over some rounds of *calls*."""
    call()
    found = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - begin) / calls)
    torch.cuda.synchronize()
    return statistics.median(found), min(found), max(found)
