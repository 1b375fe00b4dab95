"""Reads and writes of an NVMe drive past the page cache (direct I/O): small ones alone, large ones many at a time."""

from __future__ import annotations

import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from simulator.calibration.drive_mount import find_drive
from simulator.calibration.point import Point

FILE_BYTES = 2 << 30
"""Size of the file that is read and written: more than a drive's own cache takes in unnoticed."""
ALONE = 500
"""Small requests, one after the other."""
PASSES = 5
ENOUGH_S = 5.0
"""A slow drive is passed over twice, and not again after so long."""

Request = Callable[[memoryview, int], int]


def measure(shape: tuple[str, int, int]) -> Iterator[Point]:
    """*shape*: read or write, bytes of a request, requests under way. Raise :exc:`RuntimeError` without a drive."""
    mount = find_drive()
    if mount is None:
        raise RuntimeError("no file system on NVMe drives that can be written to")
    yield measure_in(mount.folder, *shape)


def measure_in(folder: str, way: str, block: int, under_way: int, size: int = FILE_BYTES) -> Point:
    """The same in a file of *size* bytes in *folder*, which is gone when it is closed.

    One request at a time: seconds of a request. Several: seconds of a pass over the file. Raise :exc:`OSError` where
    the file system takes no direct I/O or has no room.
    """
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".rackcast-") as file:
        handle = os.open(file.name, os.O_RDWR | os.O_DIRECT)
        try:
            requests = max(8, under_way)
            _pass(partial(_write, handle), max(block, 1 << 20), requests, size)
            request = partial(_read if way == "read" else _write, handle)
            if under_way == 1:
                times, moved = _alone(request, block, size), block
            else:
                times, moved = _passes(request, block, under_way, size), size
        finally:
            os.close(handle)
    tenths = statistics.quantiles(times, n=10, method="inclusive")
    return Point(
        "drive", way, (block, under_way), "bytes", 0.0, float(moved), statistics.median(times), tenths[0], tenths[-1]
    )


def _read(handle: int, buffer: memoryview, offset: int) -> int:
    return os.preadv(handle, [buffer], offset)


def _write(handle: int, buffer: memoryview, offset: int) -> int:
    return os.pwritev(handle, [buffer], offset)


def _alone(request: Request, block: int, size: int) -> list[float]:
    """Seconds of requests all over the file, one after the other."""
    buffer, found = _buffer(block), []
    for number in range(ALONE):
        # A step of a large odd number of blocks comes by every block before it comes back.
        offset = number * 7919 % (size // block) * block
        begin = time.perf_counter()
        request(buffer, offset)
        found.append(time.perf_counter() - begin)
    return found


def _passes(request: Request, block: int, under_way: int, size: int) -> list[float]:
    """Seconds of each pass."""
    found: list[float] = []
    while len(found) < 2 or (len(found) < PASSES and sum(found) < ENOUGH_S):
        found.append(_pass(request, block, under_way, size))
    return found


def _pass(request: Request, block: int, under_way: int, size: int) -> float:
    """Seconds for *size* bytes, block after block, so many of them at a time."""

    def share(first: int) -> None:
        buffer = _buffer(block)
        for offset in range(first * block, size, under_way * block):
            if request(buffer, offset) != block:
                raise OSError(f"a request of {block} bytes at {offset} was served in part")

    begin = time.perf_counter()
    with ThreadPoolExecutor(under_way) as threads:
        list(threads.map(share, range(under_way)))
    return time.perf_counter() - begin


def _buffer(size: int) -> memoryview:
    """Memory that begins at a page, as direct I/O wants it, of bytes that no drive compresses."""
    buffer = mmap.mmap(-1, size)
    buffer.write(os.urandom(size))
    return memoryview(buffer)
