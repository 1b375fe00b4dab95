"""Collectives between the GPUs of this machine, by size. Run under torchrun."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from simulator.calibration.clock import point
from simulator.calibration.point import Point

FORMATS = {"bf16": torch.bfloat16, "fp32": torch.float32}
HOT = 3
"""How much more the first rank is sent than each other, in the skewed all-to-all."""


def measure(shape: tuple[int]) -> Iterator[Point]:
    """All-gather, reduce-scatter, all-reduce and all-to-all of a size; a point's shape is (bytes, ranks).

    The skewed all-to-all adds what the busiest port receives: rank 0, from all others. One more sends parts that do not
    begin at 16 bytes, which no row of an expert does.
    """
    (size,) = shape
    ranks = dist.get_world_size()
    for name, dtype in FORMATS.items():
        for operation, call in _calls(size, dtype).items():
            yield point(operation, operation, (size, ranks), call, traffic=float(size), dtype=name)
    call, busiest_bytes = _skewed(size)
    yield point("all_to_all", "all_to_all, skewed", (size, ranks, busiest_bytes), call, traffic=float(size))
    yield point("all_to_all", "all_to_all, off 16 bytes", (size, ranks), _off_grain(size), traffic=float(size))


def _calls(size: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    whole = torch.randn(size // dtype.itemsize, device="cuda", dtype=torch.float32).to(dtype)
    part = whole[: len(whole) // dist.get_world_size()].clone()
    other = torch.empty_like(whole)
    return {
        "all_gather": lambda: dist.all_gather_into_tensor(other, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_reduce": lambda: dist.all_reduce(other),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
    }


def _skewed(size: int) -> tuple[Callable[[], object], int]:
    """Every rank sends rank 0 `HOT` times what it sends another, and *size* bytes in all; bytes into rank 0's port."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    elements = size // torch.bfloat16.itemsize
    other = elements // (ranks - 1 + HOT)
    sent = [elements - other * (ranks - 1), *[other] * (ranks - 1)]
    received = [sent[rank]] * ranks
    whole = torch.randn(elements, device="cuda").bfloat16()
    into = torch.empty(sum(received), device="cuda", dtype=torch.bfloat16)
    busiest_bytes = (ranks - 1) * sent[0] * torch.bfloat16.itemsize
    return lambda: dist.all_to_all_single(into, whole, received, sent), busiest_bytes


def _off_grain(size: int) -> Callable[[], object]:
    """Almost even parts, the first an element longer than the last: what follows the first lies two bytes off."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    even = size // torch.bfloat16.itemsize // ranks
    sent = [even + 1, *[even] * (ranks - 2), even - 1]
    received = [sent[rank]] * ranks
    whole = torch.randn(sum(sent), device="cuda").bfloat16()
    into = torch.empty(sum(received), device="cuda", dtype=torch.bfloat16)
    return lambda: dist.all_to_all_single(into, whole, received, sent)
