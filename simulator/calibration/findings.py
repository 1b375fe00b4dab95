"""Single figures that points tell: the clock, launches, interference, rates of memory, matmuls, copies and drives."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from simulator.calibration.layer import work
from simulator.calibration.point import Point
from simulator.calibration.pricing import priced_s
from simulator.hardware.accelerator import Accelerator

CLOCK_WITHOUT_PROFILER_S = 3e-6
"""Where the profiler tells nothing: as measured on an H200."""


def clock_s(points: Sequence[Point]) -> float:
    """What a call timed alone takes longer than its kernel among others: a small kernel, both ways."""
    alone, profiled = _one(points, "small kernel, timed alone"), _one(points, "small kernel, profiled")
    return max(0.0, alone - profiled) if alone and profiled else CLOCK_WITHOUT_PROFILER_S


def launch_s(points: Sequence[Point]) -> float | None:
    """Host seconds of a small framework operator."""
    return _one(points, "add")


def copy_bytes_per_s(points: Sequence[Point], clock: float) -> float | None:
    """Rate of the largest copy within device memory."""
    copies = [p for p in points if p.kind == "copy"]
    largest = max(copies, key=lambda p: p.bytes, default=None)
    return largest.bytes / (largest.seconds - clock) if largest else None


def matmul_flops_per_s(points: Sequence[Point]) -> float | None:
    """The best rate of a dense bf16 product."""
    return max((p.flops / p.seconds for p in points if p.kind == "gemm" and p.dtype == "bf16"), default=None)


def host_copy_bytes_per_s(points: Sequence[Point], copy: str) -> float | None:
    """Rate of the largest copy called *copy*, such as "pinned, to the GPU"."""
    copies = [p for p in points if p.name == copy]
    largest = max(copies, key=lambda p: p.bytes, default=None)
    return largest.bytes / largest.seconds if largest else None


def host_copy_latency_s(points: Sequence[Point]) -> float | None:
    """What pinned copies of 1 to 16 MiB take longer than their bytes at the rate of the largest, in the middle."""
    waits = []
    for copy in ("pinned, to the GPU", "pinned, to the host"):
        rate = host_copy_bytes_per_s(points, copy)
        some = (p for p in points if p.name == copy and 2**20 <= p.bytes <= 2**24)
        waits += [p.seconds - p.bytes / rate for p in some if rate]
    return max(1e-7, statistics.median(waits)) if waits else None


def drive_bytes_per_s(points: Sequence[Point], way: str) -> float | None:
    """Rate of an NVMe file system with many large requests under way: read or write."""
    large = [p for p in points if p.kind == "drive" and p.name == way and p.shape[1] > 1]
    return max((p.bytes / p.seconds for p in large), default=None)


def drive_latency_s(points: Sequence[Point], way: str) -> float | None:
    """Seconds of a small request alone."""
    return next((p.seconds for p in points if p.kind == "drive" and p.name == way and p.shape[1] == 1), None)


def compute_taken(points: Sequence[Point]) -> float | None:
    """Share of compute that a collective takes: in the middle of all kernels and collectives.

    A kernel beside one takes 1 / (1 - share) times as long as alone.
    """
    alone = {_kernel(p): p.seconds for p in points if p.kind == "interference" and p.name.endswith("beside alone")}
    beside = [p for p in points if p.kind == "interference" and not p.name.endswith("beside alone")]
    shares = [1.0 - alone[_kernel(p)] / p.seconds for p in beside]
    return max(0.01, statistics.median(shares)) if shares else None


def sustained(points: Sequence[Point], kind: str, accelerator: Accelerator) -> float | None:
    """Share of its own rate, as *accelerator* prices it, that *kind* keeps within a row of a layer's kernels."""
    within = next((p.seconds for p in points if p.kind == "sustained" and p.name == f"{kind} within"), None)
    alone = sum(priced_s(kernel, accelerator) for kernel in work(kind))
    return min(1.0, alone / within) if alone and within else None


def _kernel(point: Point) -> str:
    return point.name.partition(" beside ")[0]


def _one(points: Sequence[Point], name: str) -> float | None:
    return next((p.seconds for p in points if p.kind == "launch" and p.name == name), None)
