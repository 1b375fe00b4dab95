"""The clock: device time of a call, from CUDA events, with cold caches and the spread kept.

The device sleeps before each call, so that the host has issued all of it: chains of small kernels do not wait for the
host. A call timed alone still takes some microseconds longer than its kernels inside a training step, which the table
`launch` measures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from simulator.calibration.point import Point

FLUSH_BYTES = 256 * 2**20
"""Written between timed calls, so that operands come from memory and not from a cache (H200: 50 MB of L2)."""
HEAD_START_CYCLES = 600_000
"""What the device sleeps before a timed call, 0.3 ms at 2 GHz."""
WARM_UP_CALLS = 3


def device_time(call: Callable[[], object], repeats: int = 15) -> tuple[float, float, float]:
    """(median, 10th, 90th percentile) of the device seconds of *call*, after a few calls that do not count."""
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(WARM_UP_CALLS):
        call()
    pairs = []
    for _ in range(repeats):
        scratch.zero_()
        torch.cuda._sleep(HEAD_START_CYCLES)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) / 1e3 for begin, end in pairs)
    return statistics.median(times), times[len(times) // 10], times[-1 - len(times) // 10]


def point(
    kind: str,
    name: str,
    shape: tuple[int, ...],
    call: Callable[[], object],
    *,
    flops: float = 0.0,
    traffic: float = 0.0,
    dtype: str = "bf16",
    backward: bool = False,
    rows: tuple[int, ...] = (),
) -> Point:
    """Time *call* and say what it did."""
    return Point(kind, name, shape, dtype, flops, traffic, *device_time(call), backward, rows)
