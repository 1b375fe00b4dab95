"""What a collective takes from compute beside it: kernels timed alone and during a collective. Run under torchrun."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as f

from simulator.calibration.point import Point

BUFFER_BYTES = 2**30
REPEATS = 12
OPERATIONS = ("all_gather", "reduce_scatter", "all_to_all")


def measure(shape: tuple[str]) -> Iterator[Point]:
    """A kernel alone, then beside each collective; a point's shape is (kernels timed, ranks)."""
    (name,) = shape
    call = _kernels()[name]
    yield _point(name, "alone", _time(call, None))
    for operation in OPERATIONS:
        yield _point(name, operation, _time(call, operation))


def _point(name: str, beside: str, seconds: float) -> Point:
    shape = REPEATS, dist.get_world_size()
    return Point("interference", f"{name} beside {beside}", shape, "bf16", 0.0, 0.0, seconds, seconds, seconds)


def _kernels() -> dict[str, Callable[[], object]]:
    x, w = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    heads = torch.randn(1, 32, 8192, 128, device="cuda", dtype=torch.bfloat16)
    narrow = torch.randn(1024, 8192, device="cuda", dtype=torch.bfloat16)
    return {
        "gemm 8192x8192x8192": lambda: x @ w,
        "gemm 8192x1024x8192": lambda: x @ narrow.T,
        "attention 32x8192x128": lambda: f.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
        "add 64Mi": lambda: x + w,
        "cast 64Mi": x.float,
    }


def _time(call: Callable[[], object], operation: str | None) -> float:
    """Mean device seconds of *call*, with collectives of *operation* under way on another stream all the while."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    beside = torch.cuda.Stream()
    if operation is not None:
        with torch.cuda.stream(beside):
            _collectives(operation)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(REPEATS):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / REPEATS


def _collectives(operation: str) -> None:
    """Enough collectives to outlast the kernels."""
    ranks = dist.get_world_size()
    dtype = torch.float32 if operation == "reduce_scatter" else torch.bfloat16
    whole = torch.empty(BUFFER_BYTES // dtype.itemsize, device="cuda", dtype=dtype)
    part, other = whole[: len(whole) // ranks].clone(), torch.empty_like(whole)
    for _ in range(24):
        if operation == "all_gather":
            dist.all_gather_into_tensor(other, part)
        elif operation == "reduce_scatter":
            dist.reduce_scatter_tensor(part, whole)
        else:
            dist.all_to_all_single(other, whole)
