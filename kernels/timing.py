"""How kernels are timed and compared on the GPU at hand: what the benchmarks share."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch

Row = dict[str, Any]
Call = Callable[[], object]
FLUSH_BYTES = 256 * 2**20
HEAD_START_CYCLES = 4_000_000
"""What the GPU sleeps before a timed call, about 2 ms, so that the host has issued all of it by the time it starts."""
BF16 = torch.bfloat16


def seconds(call: Call, repeats: int = 10) -> float:
    """Median device seconds of *call*, after two calls that do not count, with cold caches."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    call()
    call()
    pairs = []
    for _ in range(repeats):
        flush.zero_()
        torch.cuda._sleep(HEAD_START_CYCLES)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs) / 1e3


def peak_bytes(call: Call) -> int:
    """Bytes that *call* allocates at its peak beyond what is allocated before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def package(name: str, module: str) -> tuple[Any, Row]:
    """(the module of a public package, its version), or (None, how to install it) where it cannot be imported."""
    try:
        return import_module(module), {"package": f"{name} {version(name)}"}
    except ImportError as error:
        return None, {"missing": f"pip install --no-deps {name} ({error})"}


def drawn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(shape, device="cuda", dtype=dtype)


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is wanted."""
    return float((found.detach().double() - wanted.detach().double()).norm() / wanted.detach().double().norm())


def differentiated(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], gradient: torch.Tensor) -> Call:
    """A call that runs *function* and its backward pass, and hands back the result and the gradients."""

    def call() -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        result = function(*leaves)
        result.backward(gradient.to(result.dtype))
        return [result, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    return call


def errors(fused: Callable[..., torch.Tensor], plain: Callable[..., torch.Tensor], inputs: list[torch.Tensor],
           gradient: torch.Tensor) -> list[float]:  # fmt: skip
    """Errors of the result and of each gradient against the reference in fp32."""
    found = differentiated(fused, inputs, gradient)()
    wanted = differentiated(plain, [x.float() for x in inputs], gradient.float())()
    return [distance(a, b) for a, b in zip(found, wanted, strict=True)]
