"""What fp8 products need around them: largest absolute values, casts and transposes, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from simulator.calibration.clock import point
from simulator.calibration.fp8_products import BLOCK, E4M3
from simulator.calibration.point import Point

LARGEST = 448.0
"""What e4m3 holds."""
COLUMNS = 4096
COMPILED_FROM = 2**22
"""Elements below which a compiled kernel is all start; compiling takes a second each."""


def measure(shape: tuple[int, str]) -> Iterator[Point]:
    """Of a matrix of so many elements "all": single eager kernels, then what a compiler fuses; or "amax" alone."""
    elements, which = shape
    x = torch.randn(elements // COLUMNS, COLUMNS, device="cuda", dtype=torch.bfloat16)
    eager = _eager(x) if which == "all" else ()
    for kind, name, dtype, element_bytes, call in (*eager, *_compiled(x, which)):
        yield point(kind, name, tuple(x.shape), call, traffic=element_bytes * elements, dtype=dtype)


Call = tuple[str, str, str, float, Callable[[], object]]
"""Kind, name, format, bytes an element, and what to call."""


def _eager(x: torch.Tensor) -> tuple[Call, ...]:
    full, small = x.float(), x.to(E4M3)
    return (
        ("amax", "max of all bf16", "bf16", 2.0, lambda: x.max()),
        ("elementwise", "abs bf16", "bf16", 4.0, lambda: x.abs()),
        ("elementwise", "clamp fp32", "fp32", 8.0, lambda: full.clamp(-LARGEST, LARGEST)),
        ("cast_down", "fp32 -> fp8", "fp32", 5.0, lambda: full.to(E4M3)),
        ("transpose", "transpose fp8", "fp8", 2.0, lambda: small.t().contiguous()),
    )


def _compiled(x: torch.Tensor, which: str) -> Iterator[Call]:
    one = torch.ones((), device="cuda")
    largest = ("amax_compiled", amax, 2.0, ())
    casts = (
        ("quantize", cast, 3.0, (one,)),
        ("quantize_transposed", cast_both_ways, 4.0, (one,)),
        ("quantize_rows", cast_rows, 3.0, ()),
        ("quantize_columns", cast_columns, 5.0, ()),
        ("quantize_blocks", cast_blocks, 3.0 + 4.0 / BLOCK, ()),
    )
    for kind, function, element_bytes, more in (largest, *(casts if which == "all" else ())):
        if x.numel() < COMPILED_FROM:
            return
        fused = torch.compile(function, dynamic=False)

        def call(fused: Callable[..., object] = fused, more: tuple[torch.Tensor, ...] = more) -> object:
            return fused(x, *more)

        yield kind, f"{function.__name__}, compiled", "bf16", element_bytes, call


def amax(x: torch.Tensor) -> torch.Tensor:
    """The largest absolute value of all."""
    return x.abs().max()


def cast(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scaled, cut off and rounded."""
    return (x.float() * scale).clamp(-LARGEST, LARGEST).to(E4M3)


def cast_both_ways(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast, and the transpose that the gradient of weights wants."""
    small = cast(x, scale)
    return small, small.t().contiguous()


def cast_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale a row."""
    scale = LARGEST / x.abs().amax(dim=-1, keepdim=True).float().clamp(min=1e-12)
    return cast(x, scale), scale


def cast_columns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale a column, laid out with columns along memory, as the gradient of weights wants it."""
    scale = LARGEST / x.abs().amax(dim=0, keepdim=True).float().clamp(min=1e-12)
    return cast(x, scale).t().contiguous(), scale


def cast_blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale for each 128 elements of a row."""
    rows, columns = x.shape
    blocks = x.view(rows, columns // BLOCK, BLOCK)
    scale = LARGEST / blocks.abs().amax(dim=-1, keepdim=True).float().clamp(min=1e-12)
    return cast(blocks, scale).view(rows, columns), scale
