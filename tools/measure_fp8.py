"""Times fp8 matrix products and what they need around them on the GPU at hand; writes one JSON file. Needs torch only.

    python tools/measure_fp8.py fp8.json

Products run through `torch._scaled_mm` with one scale a tensor, a scale a row, and scales of 1 x 128 by 128 x 128
blocks; grouped ones through `torch._scaled_grouped_mm`. Around them: absolute maxima, casts and transposes, eager and
compiled. Each time is the median of 20 calls with cold caches, in device seconds. A call that this version of torch
lacks is listed under `refused` with its message. Takes under 90 s.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

REPEATS = 20
FLUSH_BYTES = 256 * 2**20
LAST_COMPILE_AT_S = 70.0
"""No new kernel is compiled after so much time, so that the file is written in any case."""
E4M3, FP8_MAX = torch.float8_e4m3fn, 448.0
SHAPES = (
    (16, 4096, 4096), (128, 7168, 2048), (512, 4096, 4096), (1024, 1024, 1024), (2048, 2048, 2048),
    *((rows, n, k) for rows in (4096, 8192, 16384, 32768) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336))),
    *((rows, 1024, 4096) for rows in (4096, 16384)), (8192, 4096, 1024),
    *((rows, n, k) for rows in (4096, 16384) for n, k in ((8192, 8192), (28672, 8192), (8192, 28672), (1024, 8192))),
    (4096, 4096, 32768), (14336, 4096, 16384), (1024, 4096, 8192),
    (4096, 2048, 7168), (4096, 7168, 2048), (4096, 24576, 1536), (4096, 7168, 16384), (4096, 1536, 7168),
)  # fmt: skip
"""(m, n, k) of products, both operands along k in memory: linears of Llama 3 8B and 70B and DeepSeek-V3, and gradients
of their weights, whose k is the rows."""
GROUPED = (
    (8, 512, 4096, 7168),
    (8, 2048, 4096, 7168),
    (8, 2048, 7168, 2048),
    (32, 256, 4096, 7168),
    (32, 256, 7168, 2048),
)
"""(experts, rows of each, n, k)."""
ELEMENTS = tuple(2**n for n in (18, 20, 22, 24, 26, 28))
COMPILED_ELEMENTS = (2**22, 2**25, 2**27)
COLUMNS = 4096


def device_time(call: Callable[[], object]) -> tuple[float, float, float]:
    """(median, 10th, 90th percentile) of the device seconds of *call*."""
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(3):
        call()
    pairs = []
    for _ in range(REPEATS):
        scratch.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) / 1e3 for begin, end in pairs)
    return statistics.median(times), times[len(times) // 10], times[-1 - len(times) // 10]


def operand(rows: int, columns: int) -> torch.Tensor:
    """Normally distributed fp8: what a chip at its power limit does depends on the bits."""
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16).to(E4M3)


def products() -> Iterator[tuple[str, tuple[int, ...], str, Callable[[], object]]]:
    """Dense products of every shape with every sort of scales."""
    for m, n, k in SHAPES:
        a, b = operand(m, k), operand(n, k).t()
        one = torch.ones((), device="cuda")
        rows, columns = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
        blocks_a, blocks_b = (
            torch.ones(k // 128, m, device="cuda").t(),
            torch.ones(-(-n // 128), k // 128, device="cuda"),
        )
        for name, left, right, fast in (
            ("tensorwise", one, one, True),
            ("tensorwise, exact accumulation", one, one, False),
            ("rowwise", rows, columns, True),
            ("rowwise, exact accumulation", rows, columns, False),
            ("blockwise", blocks_a, blocks_b.t(), False),
        ):
            yield "gemm", (m, n, k), name, scaled(a, b, left, right, fast=fast)
        if k >= 4096 and m in {4096, 16384}:
            wide, tall = a.bfloat16(), b.bfloat16()
            yield "gemm", (m, n, k), "bf16", lambda wide=wide, tall=tall: wide @ tall


def scaled(
    a: torch.Tensor, b: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, fast: bool
) -> Callable[[], object]:
    """The product of *a* and *b* with these scales."""
    return lambda: torch._scaled_mm(a, b, left, right, out_dtype=torch.bfloat16, use_fast_accum=fast)


def grouped_products() -> Iterator[tuple[str, tuple[int, ...], str, Callable[[], object]]]:
    """Products of equal groups of rows with a matrix each, one scale a row."""
    for experts, rows, n, k in GROUPED:
        a = operand(experts * rows, k)
        b = operand(experts * n, k).view(experts, n, k).transpose(-2, -1)
        left, right = torch.ones(experts * rows, device="cuda"), torch.ones(experts, n, device="cuda")
        ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * rows

        def call(a=a, b=b, left=left, right=right, ends=ends) -> object:
            return torch._scaled_grouped_mm(a, b, left, right, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True)

        yield "grouped_gemm", (experts, rows, n, k), "rowwise", call


def element_kernels() -> Iterator[tuple[str, tuple[int, ...], str, Callable[[], object]]]:
    """Single eager kernels over a matrix."""
    for elements in ELEMENTS:
        x = torch.randn(elements // COLUMNS, COLUMNS, device="cuda", dtype=torch.bfloat16)
        full, small = x.float(), x.to(E4M3)
        calls = {
            "abs bf16": lambda x=x: x.abs(),
            "max of all bf16": lambda x=x: x.max(),
            "amax of rows bf16": lambda x=x: torch.amax(x, dim=-1, keepdim=True),
            "amax of columns bf16": lambda x=x: torch.amax(x, dim=0, keepdim=True),
            "clamp fp32": lambda full=full: full.clamp(-FP8_MAX, FP8_MAX),
            "fp32 -> fp8": lambda full=full: full.to(E4M3),
            "bf16 -> fp8": lambda x=x: x.to(E4M3),
            "transpose fp8": lambda small=small: small.t().contiguous(),
        }
        for name, call in calls.items():
            yield "elements", tuple(x.shape), name, call


def amax(x: torch.Tensor) -> torch.Tensor:
    """The largest absolute value of all."""
    return x.abs().max()


def cast(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scaled, cut off and rounded."""
    return (x.float() * scale).clamp(-FP8_MAX, FP8_MAX).to(E4M3)


def cast_both_ways(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast, and the transpose that the gradient of weights wants."""
    small = cast(x, scale)
    return small, small.t().contiguous()


def cast_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale a row."""
    scale = FP8_MAX / x.abs().amax(dim=-1, keepdim=True).float().clamp(min=1e-12)
    return cast(x, scale), scale


def cast_columns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale a column, laid out with columns along memory, as the gradient of weights wants it."""
    scale = FP8_MAX / x.abs().amax(dim=0, keepdim=True).float().clamp(min=1e-12)
    return cast(x, scale).t().contiguous(), scale


def cast_blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale for each 128 elements of a row."""
    rows, columns = x.shape
    blocks = x.view(rows, columns // 128, 128)
    scale = FP8_MAX / blocks.abs().amax(dim=-1, keepdim=True).float().clamp(min=1e-12)
    return cast(blocks, scale).view(rows, columns), scale


def compiled_kernels(begun: float) -> Iterator[tuple[str, tuple[int, ...], str, Callable[[], object]]]:
    """What a compiler fuses, one function at a time."""
    one = torch.ones((), device="cuda")
    for function, more in (
        (amax, ()), (cast, (one,)), (cast_both_ways, (one,)), (cast_rows, ()), (cast_columns, ()), (cast_blocks, ()),
    ):  # fmt: skip
        for elements in COMPILED_ELEMENTS:
            if time.monotonic() - begun > LAST_COMPILE_AT_S:
                return
            x = torch.randn(elements // COLUMNS, COLUMNS, device="cuda", dtype=torch.bfloat16)
            fused = torch.compile(function, dynamic=False)
            yield "compiled", tuple(x.shape), function.__name__, lambda fused=fused, x=x, more=more: fused(x, *more)


def driver() -> str:
    """The driver's version, as the tool that comes with it prints it."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    listing = subprocess.run(query, capture_output=True, text=True, check=False).stdout  # noqa: S603
    return listing.split("\n")[0].strip()


def main(out: str) -> None:
    """Measure all and write *out*."""
    begun = time.monotonic()
    torch.manual_seed(0)
    points, refused = [], []
    for source in (products(), grouped_products(), element_kernels(), compiled_kernels(begun)):
        for kind, shape, name, call in source:
            try:
                seconds, low_s, high_s = device_time(call)
            except (RuntimeError, TypeError, ValueError, AttributeError) as problem:
                refused.append({"kind": kind, "name": name, "shape": shape, "why": str(problem)[:300]})
                continue
            points.append(
                {"kind": kind, "name": name, "shape": shape, "seconds": seconds, "low_s": low_s, "high_s": high_s}
            )
    found = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "gpu": torch.cuda.get_device_name(),
        "driver": driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "script": "tools/measure_fp8.py",
        "repeats": REPEATS,
        "wall_s": round(time.monotonic() - begun, 1),
        "points": points,
        "refused": refused,
    }
    Path(out).write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(points)} points, {len(refused)} refused, {found['wall_s']} s")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/measure_fp8.py OUT.json")
    main(sys.argv[1])
