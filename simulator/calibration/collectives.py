"""Collectives between GPUs of this machine, by size and by how many of its first GPUs take part. Run under torchrun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch
import torch.distributed as dist

from simulator.calibration.clock import point
from simulator.calibration.point import Point

FORMATS = {"bf16": torch.bfloat16, "fp32": torch.float32}
HOT = 3
"""How much more the first rank is sent than each other, in the skewed all-to-all."""


def measure(shape: tuple[int, int]) -> Iterator[Point]:
    """Every collective of a size among so many ranks; a point's shape is (bytes, ranks).

    The skewed all-to-all adds what the busiest port receives: rank 0, from all others. One more sends parts that do not
    begin at 16 bytes, which no row of an expert does. Other GPUs wait meanwhile.
    """
    size, ranks = shape
    group = _first(ranks)
    if dist.get_rank() < ranks:
        yield from _points(size, group)
    dist.barrier()


def _points(size: int, group: dist.ProcessGroup) -> Iterator[Point]:
    ranks, traffic = group.size(), float(size)
    for name, dtype in FORMATS.items():
        for operation, call in _calls(size, dtype, group).items():
            yield point(operation, operation, (size, ranks), call, traffic=traffic, dtype=name)
    call, busiest_bytes = _skewed(size, group)
    yield point("all_to_all", "all_to_all, skewed", (size, ranks, busiest_bytes), call, traffic=traffic)
    yield point("all_to_all", "all_to_all, off 16 bytes", (size, ranks), _off_grain(size, group), traffic=traffic)
    for name, call in _messages(size, group).items():
        yield point(name.split(",")[0], name, (size, ranks), call, traffic=traffic)


@cache
def _first(ranks: int) -> dist.ProcessGroup:
    """The group of the first *ranks*, which all ranks have to ask for together."""
    return dist.new_group(list(range(ranks)))


def _calls(size: int, dtype: torch.dtype, group: dist.ProcessGroup) -> dict[str, Callable[[], object]]:
    whole = torch.randn(size // dtype.itemsize, device="cuda", dtype=torch.float32).to(dtype)
    part = whole[: len(whole) // group.size()].clone()
    other = torch.empty_like(whole)
    return {
        "all_gather": lambda: dist.all_gather_into_tensor(other, part, group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_reduce": lambda: dist.all_reduce(other, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
    }


def _messages(size: int, group: dist.ProcessGroup) -> dict[str, Callable[[], object]]:
    """A broadcast; a message from each rank to the next, all at once; and, of two ranks, one from the first alone."""
    rank, ranks = dist.get_rank(), group.size()
    mine, theirs = (torch.randn(size // torch.bfloat16.itemsize, device="cuda").bfloat16() for _ in range(2))

    def to_the_next() -> None:
        sent = dist.P2POp(dist.isend, mine, (rank + 1) % ranks, group)
        received = dist.P2POp(dist.irecv, theirs, (rank - 1) % ranks, group)
        for work in dist.batch_isend_irecv([sent, received]):
            work.wait()

    def to_the_second() -> None:
        dist.send(mine, 1, group) if rank == 0 else dist.recv(theirs, 0, group)

    found = {"one_to_all": lambda: dist.broadcast(mine, 0, group), "send, ring": to_the_next}
    return found | ({"send": to_the_second} if ranks == 2 else {})


def _skewed(size: int, group: dist.ProcessGroup) -> tuple[Callable[[], object], int]:
    """Every rank sends rank 0 `HOT` times what it sends another, and *size* bytes in all; bytes into rank 0's port."""
    ranks, rank = group.size(), dist.get_rank()
    elements = size // torch.bfloat16.itemsize
    other = elements // (ranks - 1 + HOT)
    sent = [elements - other * (ranks - 1), *[other] * (ranks - 1)]
    received = [sent[rank]] * ranks
    whole = torch.randn(elements, device="cuda").bfloat16()
    into = torch.empty(sum(received), device="cuda", dtype=torch.bfloat16)
    busiest_bytes = (ranks - 1) * sent[0] * torch.bfloat16.itemsize
    return lambda: dist.all_to_all_single(into, whole, received, sent, group), busiest_bytes


def _off_grain(size: int, group: dist.ProcessGroup) -> Callable[[], object]:
    """Almost even parts, the first an element longer than the last: what follows the first lies two bytes off."""
    ranks, rank = group.size(), dist.get_rank()
    even = size // torch.bfloat16.itemsize // ranks
    sent = [even + 1, *[even] * (ranks - 2), even - 1]
    received = [sent[rank]] * ranks
    whole = torch.randn(sum(sent), device="cuda").bfloat16()
    into = torch.empty(sum(received), device="cuda", dtype=torch.bfloat16)
    return lambda: dist.all_to_all_single(into, whole, received, sent, group)
