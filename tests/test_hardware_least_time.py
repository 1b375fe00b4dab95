from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.hardware.curve import Curve
from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.least_time import least_time_s
from simulator.hardware.library import load_accelerator

H200 = load_accelerator("h200-sxm", Path())
GEMM = {
    "kind": "gemm",
    "part": "h200-sxm",
    "source": "made up",
    "grade": "measured",
    "spread": 0.1,
    "overhead": "2 us",
    "compute": [{"by": "flops", "points": [[1e6, 0.2], [1e9, 0.5], [1e12, 0.4]], "dtype": "bf16"}],
    "memory": [{"by": "bytes", "points": [[1e3, 0.1], [1e6, 0.8]]}],
}


def with_curve(**changes):
    return replace(H200, curves={"gemm": (Curve.model_validate(GEMM | changes),)})


def test_work_runs_at_the_best_share_of_any_size_and_starts_at_once():
    # 989 GFLOP at half of 989 TFLOP/s, 4.8 GB at 0.8 of 4.8 TB/s.
    part = with_curve()
    assert least_time_s(part, "gemm", 989e9, 1) == pytest.approx(2e-3)
    assert least_time_s(part, "gemm", 1, 4.8e9) == pytest.approx(1.25e-3)
    assert least_time_s(part, "gemm", 98.9e9, 1) == pytest.approx(2e-4)


def test_within_a_step_the_part_is_at_its_power_limit():
    part = with_curve(sustained={"value": 0.8, "source": "made up", "grade": "measured"})
    assert least_time_s(part, "gemm", 989e9, 1) == pytest.approx(2e-3 / 0.8)
    assert least_time_s(part, "gemm", 1, 4.8e9) == pytest.approx(1.25e-3)
    clocked = with_curve(compute=[], sustained={"value": 0.8, "source": "made up", "grade": "measured"})
    assert least_time_s(clocked, "gemm", 1, 4.8e9) == pytest.approx(1.25e-3 / 0.8)


@given(
    kind=st.sampled_from(["gemm", "attention", "norm", "elementwise", "amax_compiled", "loss", "kda_local", "situ"]),
    tokens=st.integers(1, 65536),
    width=st.sampled_from([64, 128, 2048, 7168]),
    parts=st.integers(1, 64),
    backward=st.booleans(),
)
def test_no_number_of_kernels_does_the_work_sooner(kind, tokens, width, parts, backward):
    shape = {"gemm": (tokens, width, 4096), "attention": (8, 128, tokens)}.get(kind, ())
    flops = {"gemm": 2.0 * tokens * width * 4096, "attention": 2.0 * 8 * 128 * tokens**2}.get(kind, 0.0)
    moved = 2.0 * tokens * width * 3
    whole = least_time_s(H200, kind, parts * flops, parts * moved, shape, backward=backward)
    assert whole <= parts * kernel_time(H200, kind, flops, moved, shape, backward=backward).seconds * (1 + 1e-9)
