"""The curves of H200 against its fp8 points, `hardware_profiles/measured/h200-sxm/fp8-2026-11-30.json`."""

import json
from math import prod

import numpy as np
import pytest
from kernel_residuals import FOLDER, H200, clock_s

from simulator.hardware.kernel_time import kernel_time

POINTS = json.loads((FOLDER / "fp8-2026-11-30.json").read_text())["points"]
DENSE = {  # name of the points: format, direction, mean and worst error
    "tensorwise": ("fp8", False, 0.08, 0.18),
    "tensorwise, exact accumulation": ("fp8", True, 0.06, 0.20),
    "rowwise": ("fp8/rowwise", False, 0.07, 0.40),
    "blockwise": ("fp8/blockwise", False, 0.065, 0.42),
}
MOVED = {  # name of the points: kind, format, bytes an element, worst error from 16 million elements on
    "max of all bf16": ("amax", "bf16", 2, 0.08),
    "fp32 -> fp8": ("cast_down", "fp32", 5, 0.11),
    "clamp fp32": ("elementwise", "fp32", 8, 0.08),
    "abs bf16": ("elementwise", "bf16", 4, 0.08),
    "transpose fp8": ("transpose", "fp8", 2, 0.20),
    "amax": ("amax_compiled", "bf16", 2, 0.05),
    "cast": ("quantize", "bf16", 3, 0.06),
    "cast_both_ways": ("quantize_transposed", "bf16", 4, 0.06),
    "cast_rows": ("quantize_rows", "bf16", 3, 0.06),
    "cast_columns": ("quantize_columns", "bf16", 5, 0.10),
    "cast_blocks": ("quantize_blocks", "bf16", 3 + 4 / 128, 0.06),
}
LEAST_ELEMENTS = 2**24
"""Smaller calls hold too much of the clock, and where they are several kernels, of the host."""


def errors(name, priced, sizes):
    """{shape: priced over measured, less one} of the points called *name* with so many *sizes* in their shape."""
    found = {tuple(p["shape"]): p["seconds"] for p in POINTS if p["name"] == name and len(p["shape"]) == sizes}
    return {shape: (priced(shape) + clock_s()) / seconds - 1 for shape, seconds in found.items()}


@pytest.mark.parametrize(("name", "limits"), DENSE.items(), ids=DENSE)
def test_products(name, limits):
    dtype, backward, mean, worst = limits

    def priced(shape):
        m, n, k = shape
        work = 2 * m * n * k, m * k + k * n + 2 * m * n
        return float(kernel_time(H200, "gemm", *work, shape, dtype, backward=backward, alone=True).seconds)

    size = np.abs(list(errors(name, priced, sizes=3).values()))
    assert len(size) == 36
    assert (size.mean() < mean, size.max() < worst) == (True, True)


def test_grouped_products():
    def priced(shape):
        experts, rows, n, k = shape
        flops, traffic = 2 * experts * rows * n * k, experts * (rows * (k + 2 * n) + n * k)
        each = np.full(experts, rows)
        seconds = kernel_time(
            H200, "grouped_gemm", flops, traffic, (n, k), "fp8/rowwise", rows=each, alone=True
        ).seconds
        return float(seconds)

    size = np.abs(list(errors("rowwise", priced, sizes=4).values()))
    assert len(size) == 5
    assert size.mean() < 0.1


@pytest.mark.parametrize(("name", "limits"), MOVED.items(), ids=MOVED)
def test_casts(name, limits):
    kind, dtype, element_bytes, worst = limits

    def priced(shape):
        return float(kernel_time(H200, kind, 0, element_bytes * prod(shape), (), dtype).seconds)

    found = {shape: error for shape, error in errors(name, priced, sizes=2).items() if prod(shape) >= LEAST_ELEMENTS}
    assert len(found) >= 2
    assert max(map(abs, found.values())) < worst, found


def test_what_was_scaled_otherwise_is_priced_by_the_nearest_and_graded_so():
    work = ("gemm", 2 * 4096.0**3, 4 * 4096.0**2, (4096, 4096, 4096))
    assert kernel_time(H200, *work, "fp8/rowwise").grade == "measured"
    assert kernel_time(H200, *work, "fp8/mx").grade == "scaled"
    assert kernel_time(H200, *work, "fp8/mx").seconds == kernel_time(H200, *work, "fp8").seconds
