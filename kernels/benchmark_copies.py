"""Copies between host and GPU: pinned and pageable, by size, one way and both at once, alone and beside matmuls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch

from kernels.timing import Row, drawn

SIZES_BYTES = (2**12, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26, 2**28, 2**30)
BOTH_WAYS_BYTES = 2**30
MATMUL_SIDE = 8192
REPEATS = 7


def wall_seconds(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median seconds on the host's clock until the GPU is idle again; the first call does not count."""
    call()
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def event_seconds(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median seconds between events around *call*; the first call does not count."""
    call()
    found = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(found)


def one_way() -> Iterator[Row]:
    """Each way by size; pinned by the GPU's clock, pageable by the host's, since the host does part of the copy."""
    for size in SIZES_BYTES:
        there = torch.ones(size, dtype=torch.int8, device="cuda")
        for pinned in (True, False):
            here = torch.ones(size, dtype=torch.int8, pin_memory=pinned)
            clock = event_seconds if pinned else wall_seconds
            row: Row = {"kernel": "host copy", "memory": "pinned" if pinned else "pageable", "bytes": size}
            row["to_gpu_s"] = clock(lambda a=there, b=here: a.copy_(b, non_blocking=True))
            row["to_host_s"] = clock(lambda a=there, b=here: b.copy_(a, non_blocking=True))
            yield row


def at_once() -> Iterator[Row]:
    """Both ways at once, and each beside a row of matmuls that lasts longer: what each costs the other."""
    size = BOTH_WAYS_BYTES
    here, back = (torch.ones(size, dtype=torch.int8, pin_memory=True) for _ in range(2))
    there, away = (torch.ones(size, dtype=torch.int8, device="cuda") for _ in range(2))
    streams = [torch.cuda.Stream() for _ in range(2)]

    def copies(which: str) -> None:
        if "in" in which:
            with torch.cuda.stream(streams[0]):
                there.copy_(here, non_blocking=True)
        if "out" in which:
            with torch.cuda.stream(streams[1]):
                back.copy_(away, non_blocking=True)

    a, b = (drawn(MATMUL_SIDE, MATMUL_SIDE) for _ in range(2))
    c = torch.empty_like(a)

    def matmuls() -> None:
        for _ in range(40):
            torch.mm(a, b, out=c)

    alone = event_seconds(matmuls)
    for which in ("in", "out", "in and out"):
        row: Row = {"kernel": "host copies at once", "which": which, "bytes": size}
        row["copies_s"] = wall_seconds(lambda w=which: copies(w))

        rounds = 1 + int(alone / row["copies_s"])

        def beside(which: str = which, rounds: int = rounds) -> None:
            for _ in range(rounds):
                copies(which)
            matmuls()

        found = event_seconds(beside)
        torch.cuda.synchronize()
        yield row | {"matmuls_s": alone, "matmuls_beside_s": found}


def copies() -> Iterator[Row]:
    """All of it."""
    yield from one_way()
    yield from at_once()
