"""Collectives between the GPUs of this machine, by size. Run under torchrun."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from simulator.calibration.clock import point
from simulator.calibration.point import Point

SIZES = tuple(2**n for n in (12, 16, 20, 22, 23, 24, 25, 26, 27, 28, 29, 30))
"""Bytes of the whole buffer: what a gather ends with, a reduction begins with."""
FORMATS = {"bf16": torch.bfloat16, "fp32": torch.float32}


def measure(*, quick: bool = False) -> Iterator[Point]:
    """All-gather, reduce-scatter, all-reduce and all-to-all of every size; a point's shape is (bytes, ranks)."""
    for size in SIZES[::3] if quick else SIZES:
        for name, dtype in FORMATS.items():
            for operation, call in _calls(size, dtype).items():
                shape = (size, dist.get_world_size())
                yield point(operation, operation, shape, call, traffic=float(size), dtype=name)


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
