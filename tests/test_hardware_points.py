"""The curves of H200 against the points that come with them, `hardware_profiles/measured/h200-sxm/points`."""

import numpy as np
import pytest
from kernel_residuals import FOLDER, H200, clock_s, points, residuals
from ruamel.yaml import YAML

from simulator.calibration.collective_timings import OPERATIONS
from simulator.calibration.plan import tables
from simulator.calibration.store import read_all
from simulator.hardware.kernel_time import kernel_time

LIMITS = {  # (kind, layout or format): median and worst error of calls above 30 us
    ("amax", "bf16"): (0.01, 0.06),
    ("amax_compiled", "bf16"): (0.02, 0.02),
    ("attention", "sdpa backward"): (0.03, 0.10),
    ("attention", "sdpa forward"): (0.02, 0.10),
    ("broadcast", "bf16"): (0.06, 0.07),
    ("broadcast", "fp32"): (0.01, 0.02),
    ("cast_down", "bf16"): (0.02, 0.02),
    ("cast_down", "fp32"): (0.02, 0.04),
    ("cast_up", "bf16"): (0.01, 0.02),
    ("cat", "bf16"): (0.02, 0.03),
    ("chunk_cat", "bf16"): (0.05, 0.05),
    ("copy", "bf16"): (0.02, 0.03),
    ("elementwise", "bf16"): (0.03, 0.07),
    ("elementwise", "fp32"): (0.01, 0.02),
    ("fill", "bf16"): (0.02, 0.03),
    ("fill", "fp32"): (0.02, 0.03),
    ("gather", "bf16"): (0.01, 0.02),
    ("gemm", "dW = dy^T x"): (0.04, 0.12),
    ("gemm", "dW = dy^T x, power-limited"): (0.12, 0.24),
    ("gemm", "dx = dy W"): (0.04, 0.33),
    ("gemm", "dx = dy W, power-limited"): (0.08, 0.25),
    ("gemm", "fp8 blockwise"): (0.03, 0.05),
    ("gemm", "fp8 blockwise, power-limited"): (0.16, 0.21),
    ("gemm", "fp8 rowwise"): (0.05, 0.25),
    ("gemm", "fp8 rowwise, power-limited"): (0.09, 0.22),
    ("gemm", "fp8 tensorwise"): (0.02, 0.06),
    ("gemm", "fp8 tensorwise, power-limited"): (0.02, 0.14),
    ("gemm", "y = x W^T"): (0.04, 0.25),
    ("gemm", "y = x W^T, power-limited"): (0.04, 0.19),
    ("grouped_gemm", "dW = x^T dy"): (0.06, 0.20),
    ("grouped_gemm", "dW = x^T dy, power-limited"): (0.08, 0.21),
    ("grouped_gemm", "dx = dy W^T"): (0.04, 0.29),
    ("grouped_gemm", "dx = dy W^T, power-limited"): (0.04, 0.15),
    ("grouped_gemm", "y = x W"): (0.04, 0.27),
    ("grouped_gemm", "y = x W, power-limited"): (0.04, 0.14),
    ("loss", "backward"): (0.03, 0.05),
    ("loss", "forward"): (0.03, 0.07),
    ("masked_fill", "bf16"): (0.07, 0.08),
    ("norm", "bf16"): (0.01, 0.01),
    ("optimizer", "bf16"): (0.02, 0.02),
    ("optimizer", "fp32"): (0.02, 0.02),
    ("optimizer_foreach", "bf16"): (0.02, 0.02),
    ("optimizer_foreach", "fp32"): (0.01, 0.01),
    ("quantize", "bf16"): (0.02, 0.03),
    ("quantize_blocks", "bf16"): (0.03, 0.04),
    ("quantize_columns", "bf16"): (0.04, 0.09),
    ("quantize_rows", "bf16"): (0.02, 0.02),
    ("quantize_transposed", "bf16"): (0.08, 0.09),
    ("reduction", "bf16"): (0.03, 0.08),
    ("reduction", "fp32"): (0.04, 0.12),
    ("scatter", "bf16"): (0.01, 0.04),
    ("scatter_put", "bf16"): (0.03, 0.26),
    ("split_copy", "bf16"): (0.04, 0.04),
    ("topk", "fp32"): (0.07, 0.13),
    ("transpose", "bf16"): (0.01, 0.01),
    ("transpose", "fp8"): (0.06, 0.11),
}
OTHERWISE = {("sort", "int64")}
"""It follows profiled steps, where choices have fewer bits."""
RESIDUALS = residuals()


def test_every_group_of_points_has_a_limit():
    assert set(RESIDUALS) == set(LIMITS) | OTHERWISE


@pytest.mark.parametrize(("group", "limits"), LIMITS.items(), ids=map(" ".join, LIMITS))
def test_no_curve_drifts_from_its_points(group, limits):
    size = np.abs(RESIDUALS[group])
    assert (np.median(size) <= limits[0], size.max() <= limits[1]) == (True, True)


def test_half_of_all_matmuls_below_the_power_limit_lie_within_four_percent():
    groups = [errors for (kind, layout), errors in RESIDUALS.items() if "gemm" in kind and "power" not in layout]
    size = np.abs(np.concatenate(groups))
    assert len(size) > 950
    assert np.median(size) < 0.04
    assert np.mean(size < 0.15) > 0.89


def test_points_know_where_they_come_from():
    told = YAML(typ="safe").load(FOLDER / "provenance.yaml")
    assert {"date", "gpu", "driver", "cuda", "torch", "sm_clock", "script", "method"} <= set(told)
    assert 3e-6 < clock_s() < 5e-6
    stored = {table.name: len(table.points) for table in read_all(FOLDER / "points")}
    assert stored == {name: table["points"] for name, table in told["tables"].items()}
    assert set(stored) == {table.name for table in tables(quick=True, gpus=2)}
    assert sum(stored.values()) == 2954
    moved = {*OPERATIONS, "one_to_all", "send"}
    unpriced = {"launch", "host_copy", "sustained", "interference", "kda_decode", *moved}
    assert {point.kind for point in points()} <= set(H200.curves) | unpriced


def test_rows_of_experts_add_up_to_the_work():
    for point in points("grouped_gemm"):
        experts, _, inner, out, most = point.shape
        assert (len(point.rows), max(point.rows)) == (experts, most)
        assert point.flops == 2 * sum(point.rows) * inner * out


def test_what_was_scaled_otherwise_is_priced_by_the_nearest_and_graded_so():
    work = ("gemm", 2 * 4096.0**3, 4 * 4096.0**2, (4096, 4096, 4096))
    assert kernel_time(H200, *work, "fp8/rowwise").grade == "measured"
    assert kernel_time(H200, *work, "fp8/mx").grade == "scaled"
    assert kernel_time(H200, *work, "fp8/mx").seconds == kernel_time(H200, *work, "fp8").seconds
