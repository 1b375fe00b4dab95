"""Copies between host and GPU: pinned and pageable, by size, one way and both at once, alone and beside matmuls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch

from simulator.calibration.point import Point

MATMUL_SIDE = 8192
MATMULS = 40
REPEATS = 7

Clock = Callable[[Callable[[], object]], tuple[float, float, float]]


def measure(shape: tuple[int] | tuple[str, int]) -> Iterator[Point]:
    """A size each way, or a size both ways at once and beside matmuls."""
    yield from _at_once(shape[1]) if len(shape) == 2 else _one_way(shape[0])


def wall_time(call: Callable[[], object]) -> tuple[float, float, float]:
    """(median, least, most) seconds on the host's clock until the GPU is idle again; the first call does not count."""
    call()
    found = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return statistics.median(found), min(found), max(found)


def event_time(call: Callable[[], object]) -> tuple[float, float, float]:
    """(median, least, most) seconds between events around *call*; the first call does not count."""
    call()
    found = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(found), min(found), max(found)


def _one_way(size: int) -> Iterator[Point]:
    """Pinned by the GPU's clock, pageable by the host's, since the host does part of the copy."""
    there = torch.ones(size, dtype=torch.int8, device="cuda")
    for memory, clock in (("pinned", event_time), ("pageable", wall_time)):
        here = torch.ones(size, dtype=torch.int8, pin_memory=memory == "pinned")
        ways: dict[str, Callable[[], object]] = {
            "to the GPU": lambda here=here: there.copy_(here, non_blocking=True),  # type: ignore[misc]
            "to the host": lambda here=here: here.copy_(there, non_blocking=True),  # type: ignore[misc]
        }
        for way, call in ways.items():
            yield _point(f"{memory}, {way}", size, float(size), clock(call))


def _at_once(size: int) -> Iterator[Point]:
    """Both ways at once, then each way beside a row of matmuls that lasts longer: what each costs the other."""
    copies = _copier(size)
    a, b = (torch.randn(MATMUL_SIDE, MATMUL_SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)

    def matmuls() -> None:
        for _ in range(MATMULS):
            torch.mm(a, b, out=c)

    alone = event_time(matmuls)
    yield _point("matmuls alone", MATMULS, 0.0, alone)
    for which, ways in (("to the GPU", 1), ("to the host", 1), ("both ways", 2)):
        found = wall_time(lambda which=which: copies(which))  # type: ignore[misc]
        if ways == 2:
            yield _point("pinned, both ways", size, float(ways * size), found)
        rounds = 1 + int(alone[0] / found[0])

        def beside(which: str = which, rounds: int = rounds) -> None:
            for _ in range(rounds):
                copies(which)
            matmuls()

        yield _point(f"matmuls beside copies {which}", MATMULS, 0.0, event_time(beside))
        torch.cuda.synchronize()


def _copier(size: int) -> Callable[[str], None]:
    """A function that starts copies one way or both, each way on a stream of its own."""
    here, back = (torch.ones(size, dtype=torch.int8, pin_memory=True) for _ in range(2))
    there, away = (torch.ones(size, dtype=torch.int8, device="cuda") for _ in range(2))
    streams = [torch.cuda.Stream() for _ in range(2)]

    def copies(which: str) -> None:
        if which != "to the host":
            with torch.cuda.stream(streams[0]):
                there.copy_(here, non_blocking=True)
        if which != "to the GPU":
            with torch.cuda.stream(streams[1]):
                back.copy_(away, non_blocking=True)

    return copies


def _point(name: str, size: int, traffic: float, times: tuple[float, float, float]) -> Point:
    return Point("host_copy", name, (size,), "bytes", 0.0, traffic, *times)
