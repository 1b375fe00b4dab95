"""A caching allocator: what PyTorch's takes from the device for the tensors that a program allocates.

The rules are those of `c10/cuda/CUDACachingAllocator.cpp` with default settings: sizes are rounded to 512 B; up to
1 MiB they are cut from segments of 2 MiB, below 10 MiB from segments of 20 MiB, and larger ones get a segment of their
own size, rounded to 2 MiB, unless a free block fits. The smallest free block of the stream's pool serves, the lowest
address first; a large one is split where more than 1 MiB is left over. A freed block joins free neighbours within its
segment. Segments are kept for good: giving back and trying again when the device is full is not modelled, nor are
expandable segments.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

import numpy as np

from simulator.engine.task import Allocation, Task

MIB = 1 << 20
ROUNDING = 512
LARGEST_SMALL = MIB
SMALL_SEGMENT = 2 * MIB
SHARED_SEGMENT = 20 * MIB
"""Segment for requests too large for the small pool and too small for a segment of their own."""
OWN_SEGMENT = 10 * MIB
"""Requests from this size on get a segment of their own."""
SEGMENT_ROUNDING = 2 * MIB


class Block:
    """A stretch of a segment, in use or free, with its neighbours."""

    __slots__ = ("address", "free", "left", "pool", "right", "size")

    def __init__(self, address: int, size: int, pool: _Pool) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.free = False
        self.left: Block | None = None
        self.right: Block | None = None


class _Pool:
    """Free blocks of one stream and size class: (size, address), in order."""

    __slots__ = ("blocks", "order", "smallest_rest")

    def __init__(self, smallest_rest: int) -> None:
        self.order: list[tuple[int, int]] = []
        self.blocks: dict[int, Block] = {}
        self.smallest_rest = smallest_rest
        """A block is split when at least this is left over."""

    def add(self, block: Block) -> None:
        block.free = True
        insort(self.order, (block.size, block.address))
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        del self.order[bisect_left(self.order, (block.size, block.address))]
        del self.blocks[block.address]

    def best_fit(self, size: int) -> Block | None:
        """Take the smallest free block of at least *size* out of the pool."""
        at = bisect_left(self.order, (size, 0))
        if at == len(self.order):
            return None
        block = self.blocks.pop(self.order.pop(at)[1])
        block.free = False
        return block


class CachingAllocator:
    """Segments and blocks of one device."""

    def __init__(self) -> None:
        self.reserved_bytes = 0
        """Bytes of all segments: they are never given back, so this is the peak as well."""
        self.allocated_bytes = 0
        """Bytes of the blocks in use."""
        self.allocated_when_grown_bytes = 0
        """What was in use when the last segment had been taken."""
        self._pools: dict[tuple[str, bool], _Pool] = {}

    def take(self, bytes_: float, stream: str = "compute") -> Block:
        """A block of at least *bytes_* for *stream*."""
        size = max(1, -int(-bytes_ // ROUNDING)) * ROUNDING
        small = size <= LARGEST_SMALL
        pool = self._pools.get((stream, small))
        if pool is None:
            pool = self._pools[stream, small] = _Pool(ROUNDING if small else LARGEST_SMALL + 1)
        block = pool.best_fit(size)
        grown = block is None
        if block is None:
            block = Block(self.reserved_bytes, segment_bytes(size), pool)
            self.reserved_bytes += block.size
        if block.size - size >= pool.smallest_rest:
            _split(block, size)
        self.allocated_bytes += block.size
        if grown:
            self.allocated_when_grown_bytes = self.allocated_bytes
        return block

    def give(self, block: Block) -> None:
        """Free *block*; it joins its free neighbours."""
        self.allocated_bytes -= block.size
        pool, left, right = block.pool, block.left, block.right
        if right is not None and right.free:
            pool.remove(right)
            block.size += right.size
            block.right = right.right
            if block.right is not None:
                block.right.left = block
        if left is not None and left.free:
            pool.remove(left)
            left.size += block.size
            left.right = block.right
            if left.right is not None:
                left.right.left = left
            block = left
        pool.add(block)

    def free_blocks(self) -> list[Block]:
        """Every free block."""
        return [block for pool in self._pools.values() for block in pool.blocks.values()]


def segment_bytes(size: int) -> int:
    """What is taken from the device for a request of *size* bytes that no free block serves."""
    if size <= LARGEST_SMALL:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT:
        return SHARED_SEGMENT
    return -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING


def _split(block: Block, size: int) -> None:
    rest = Block(block.address + size, block.size - size, block.pool)
    block.size = size
    rest.left, rest.right = block, block.right
    if rest.right is not None:
        rest.right.left = rest
    block.right = rest
    block.pool.add(rest)


class Replay:
    """Allocations of programs, as one behaviour makes them, served by one allocator.

    Parts of a program may be left out: releasing what was never taken does nothing.
    """

    def __init__(self, behaviour: int, tier: str = "hbm") -> None:
        self.allocator = CachingAllocator()
        self._behaviour = behaviour
        self._tier = tier
        self._held: dict[str, list[Block]] = {}

    def run(self, program: Sequence[Task]) -> None:
        """Take and give what *program* does, in its order."""
        for task in program:
            if task.allocates:
                self.take(task.allocates)
            if task.releases:
                self.give(task.releases)

    def give(self, keys: Iterable[str]) -> None:
        """Give back what was taken under *keys*."""
        for key in keys:
            for block in self._held.pop(key, ()):
                self.allocator.give(block)

    def take(self, allocations: Iterable[Allocation]) -> None:
        """Take every piece of *allocations*."""
        take, behaviour = self.allocator.take, self._behaviour
        for allocation in allocations:
            if allocation.tier != self._tier:
                continue
            pieces = allocation.pieces or (allocation.bytes,)
            sizes = [float(size[behaviour]) if isinstance(size, np.ndarray) else size for size in pieces]
            blocks = [take(size, allocation.pool) for size in sizes if size > 0]
            self._held.setdefault(allocation.key, []).extend(blocks)
