"""Errors and times of the kernels on the GPU at hand, beside plain PyTorch: ``python -m kernels.benchmarks OUT.json``.

Errors are norms of differences over norms, against fp32 references on fresh random bf16 inputs. Times are the median of
calls between events, caches flushed before each. `floor` is the larger of bytes over the copy bandwidth and FLOPs over
the matmul rate that the script measures first; each operand counts once.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from kernels import (
    benchmark_decode,
    benchmark_dsa,
    benchmark_kda,
    benchmark_loss,
    gated_norm,
    gated_unit,
    grouped_gemm,
    permutation,
    residual_mix,
    rms_norm,
    short_convolution,
)
from kernels.reference import gated_norm as plain_gate
from kernels.reference import gated_unit as plain_unit
from kernels.reference import grouped_gemm as plain_grouped
from kernels.reference import permutation as plain_permutation
from kernels.reference import residual_mix as plain_mix
from kernels.reference import rms_norm as plain_norm
from kernels.reference import short_convolution as plain_convolution
from kernels.timing import Call, Row, differentiated, distance, drawn, errors, seconds


def ceilings() -> Iterator[Row]:
    """Copy bandwidth and bf16 matmul rate."""
    x = torch.empty(2**32, dtype=torch.int8, device="cuda")
    y = torch.empty_like(x)
    yield {"kernel": "ceilings", "copy_bytes_per_s": 2 * 2**32 / seconds(lambda: y.copy_(x))}
    a, b = drawn(8192, 8192), drawn(8192, 8192)
    yield {"kernel": "ceilings", "matmul_flops": 2 * 8192**3 / seconds(lambda: a @ b)}


def passes(name: str, shape: tuple[int, ...], fused: Callable[..., torch.Tensor], plain: Callable[..., torch.Tensor],
           inputs: list[torch.Tensor], moved: tuple[float, float]) -> Iterator[Row]:  # fmt: skip
    """Error, and time of the forward and of the whole pass, fused and plain; *moved* are the bytes of each."""
    gradient = torch.randn_like(fused(*inputs))
    error = errors(fused, plain, inputs, gradient)
    for which, bytes_ in zip(("forward", "forward and backward"), moved, strict=True):
        row: Row = {"kernel": name, "pass": which, "shape": shape, "errors": error, "bytes": bytes_}
        for label, function in (("fused", fused), ("plain", plain)):
            call = partial(function, *inputs) if which == "forward" else differentiated(function, inputs, gradient)
            row[f"{label}_s"] = seconds(call)
        yield row


def rows_kernels(T: int = 16384) -> Iterator[Row]:
    """Norms, gated units, and rows to experts and back, at the widths of Kimi K3."""
    D, F, E, K, latent = 7168, 3072, 14, 16, 3584
    x, weight = drawn(T, D), drawn(D)
    for rows in (x[:37].contiguous(), x):
        moved = (4.0 * rows.numel(), 10.0 * rows.numel())
        yield from passes("rms_norm", tuple(rows.shape), rms_norm.rms_norm, plain_norm.rms_norm, [rows, weight], moved)
    both = drawn(T, 2 * F)
    for name in ("swiglu", "situ"):
        moved = (6.0 * T * F, 16.0 * T * F)
        functions = getattr(gated_unit, name), getattr(plain_unit, name)
        yield from passes(name, (T, F), *functions, [both], moved)
    tokens = T // 4
    row, ends = permutation.expert_order(torch.rand(tokens, 2 * E, device="cuda").topk(K, dim=1).indices, E)
    rows = int(ends[-1])
    x, y, weight, scale = drawn(tokens, latent), drawn(rows, latent), drawn(tokens, K), drawn(latent)
    wide, narrow = 2.0 * rows * latent, 2.0 * tokens * latent
    shape, moved = (tokens, rows, latent), (wide + narrow, 3 * wide + 2 * narrow)
    both_ways = [partial(f.permute, row_TK=row, rows=rows) for f in (permutation, plain_permutation)]
    yield from passes("permute", shape, *both_ways, [x], (wide + narrow, 2 * (wide + narrow)))
    both_ways = [lambda y, w, f=f: f.unpermute(y, row, w) for f in (permutation, plain_permutation)]
    yield from passes("unpermute", shape, *both_ways, [y, weight], moved)
    both_ways = [lambda y, w, s, f=f: f.combine_norm(y, row, w, s) for f in (permutation, plain_permutation)]
    yield from passes("combine_norm", shape, *both_ways, [y, weight, scale], moved)


def around_attention(T: int = 8192) -> Iterator[Row]:
    """Short convolutions, gates and mixes of residuals, at the widths of Kimi K3."""
    H, D, hidden = 96, 128, 7168
    x, gate, weight, taps = drawn(T, H, D), drawn(T, H, D), drawn(D), drawn(H * D, 4)
    one = 2.0 * x.numel()
    both = [partial(f.short_convolution, w_C4=taps, length=T) for f in (short_convolution, plain_convolution)]
    yield from passes("short_convolution", (T, H * D), *both, [x.flatten(1)], (2 * one, 5 * one))
    both = [partial(f.gated_norm, weight=weight) for f in (gated_norm, plain_gate)]
    yield from passes("gated_norm", (T, H, D), *both, [x, gate], (3 * one, 8 * one))
    both = [gated_norm.sigmoid_gate, plain_gate.sigmoid_gate]
    yield from passes("sigmoid_gate", (T, H * D), *both, [x, gate], (3 * one, 8 * one))
    rows, vectors = [drawn(T, hidden), drawn(T, hidden)], {"scale_D": drawn(hidden), "score_D": drawn(hidden)}
    both = [partial(f.residual_mix, **vectors) for f in (residual_mix, plain_mix)]
    one = 2.0 * T * hidden
    yield from passes("residual_mix", (T, hidden), *both, rows, (3 * one, 8 * one))


def grouped(experts: int = 14) -> Iterator[Row]:
    """Grouped matmuls by rows of an expert, even and skewed, beside torch._grouped_mm."""
    for K, N in ((3584, 6144), (3072, 3584)):
        w = drawn(experts, K, N) * K**-0.5
        for mean in (16, 64, 300, 1024, 9362):
            for skew in (0.0, 0.5):
                share = torch.softmax(torch.randn(experts, device="cuda") * skew, 0)
                ends = (share.cumsum(0) * experts * mean).round().int()
                shape = (experts, mean, K, N, "skewed" if skew else "even")
                yield from _grouped_products(shape, w, ends)
    ends = torch.tensor([0, 3, 3, 200, 201, 201], device="cuda").int()
    inputs = [drawn(201, 72), drawn(6, 72, 264)]
    fused, plain = (partial(f.grouped_gemm, ends_E=ends) for f in (grouped_gemm, plain_grouped))
    yield {"kernel": "grouped_gemm", "shape": "empty experts", "errors": errors(fused, plain, inputs, drawn(201, 264))}


def _grouped_products(shape: tuple[Any, ...], w: torch.Tensor, ends: torch.Tensor) -> Iterator[Row]:
    experts, K, N, rows = *w.shape, int(ends[-1])
    x, dy, product = drawn(rows, K), drawn(rows, N), torch._grouped_mm
    calls: dict[str, tuple[Call, Call]] = {
        "y": (lambda: grouped_gemm.rows_product(x, w, ends, transposed=False), lambda: product(x, w, offs=ends)),
        "dx": (
            lambda: grouped_gemm.rows_product(dy, w, ends, transposed=True),
            lambda: product(dy, w.transpose(1, 2), offs=ends),
        ),
        "dw": (lambda: grouped_gemm.weights_product(x, dy, ends), lambda: product(x.T, dy, offs=ends)),
    }
    for name, (ours, theirs) in calls.items():
        row: Row = {"kernel": f"grouped_gemm {name}", "shape": shape, "flops": 2.0 * rows * K * N}
        row |= {"bytes": 2.0 * (rows * (K + N) + experts * K * N), "errors": [distance(ours(), theirs())]}
        yield row | {"fused_s": seconds(ours), "plain_s": seconds(theirs)}


PARTS = {
    "ceilings": ceilings,
    "kda": benchmark_kda.forward,
    "kda_gradients": benchmark_kda.gradients,
    "kda_chain": benchmark_kda.chain,
    "kda_public": benchmark_kda.beside_a_package,
    "loss": benchmark_loss.losses,
    "grouped": grouped,
    "rows": rows_kernels,
    "around_attention": around_attention,
    "indexer": benchmark_dsa.indexers,
    "indexer_heads": benchmark_dsa.more_heads,
    "topk": benchmark_dsa.given_scores,
    "sparse": benchmark_dsa.sparse,
    "sparse_heads": benchmark_dsa.sparse_heads,
    "break_even": benchmark_dsa.break_even,
    "decode": benchmark_decode.attentions,
    "thin": benchmark_decode.thin_products,
    "thin_experts": benchmark_decode.thin_experts,
    "small": benchmark_decode.small_kernels,
    "layers": benchmark_decode.layers,
}


def versions() -> Row:
    """What the numbers depend on beside the code."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    return {"gpu": found, "torch": torch.__version__, "triton": triton.__version__, "date": time.strftime("%Y-%m-%d")}


def main() -> None:
    """Run the parts named, or all; a part that fails is named in the file and the others go on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)}")
    arguments = parser.parse_args()
    found: Row = {**versions(), "script": "python -m kernels.benchmarks", "rows": []}
    for name in arguments.parts:
        begin = time.perf_counter()
        try:
            for row in PARTS[name]():
                found["rows"].append(row)
                print(json.dumps(row), flush=True)  # noqa: T201
        except Exception:  # noqa: BLE001
            found["rows"].append({"kernel": name, "failed": traceback.format_exc()})
            print(traceback.format_exc(), flush=True)  # noqa: T201
        print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)  # noqa: T201
        gc.collect()
        torch.cuda.empty_cache()
        arguments.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
