from dataclasses import replace
from pathlib import Path

import pytest
from calibrated import STORED

from simulator.calibration.point import Point
from simulator.calibration.pricing import priced_s
from simulator.calibration.refit import refit
from simulator.hardware.curve import Curve
from simulator.hardware.library import load_accelerator

H200 = load_accelerator("h200-sxm", Path())
CLOCK_S = 4e-6


def with_curve(kind, **changes):
    """H200 with one curve changed, as another part."""
    curve = Curve.model_validate(H200.curves[kind][0].model_dump() | changes)
    return replace(H200, id="other", curves={**H200.curves, kind: (curve,)})


def copies(share, overhead_s, sizes):
    """Copies of a part with 4.8 TB/s, worked out by hand."""
    return [
        Point("copy", "copy bf16", (n,), "bf16", 0.0, 4.0 * n, *[CLOCK_S + overhead_s + 4.0 * n / (4.8e12 * share)] * 3)
        for n in sizes
    ]


def test_latency_and_rate_come_back():
    fit = refit("copy", copies(0.5, 7e-6, [2**n for n in range(16, 29)]), H200, CLOCK_S, "here")
    found = {one.name: one for one in fit.estimates}
    assert found["overhead"].value == pytest.approx(7e-6, rel=0.03)
    assert found["memory.0.points.0.1"].value == pytest.approx(0.5, rel=0.01)
    assert all(one.low < one.value < one.high for one in fit.estimates)
    assert fit.worst_error < 0.01


def test_a_knee_is_found_where_there_is_one():
    truth = with_curve("copy", memory=({"by": "bytes", "points": ((4e6, 0.4), (4e8, 0.9))},))
    made = [replace(p, seconds=priced_s(p, truth) + CLOCK_S) for p in copies(1.0, 0.0, [2**n for n in range(16, 30)])]
    fit = refit("copy", made, H200, CLOCK_S, "here")
    (series,) = fit.curve.memory
    (small, low), (large, high) = series.points
    assert small < large
    assert low < 0.6
    assert high == pytest.approx(0.9, rel=0.03)
    assert fit.worst_error < 0.05


def test_waves_and_depths_of_a_matmul_come_back():
    changed = H200.curves["gemm"][0].model_dump()
    series = changed["compute"][0] | {"half_depth": 300.0, "points": ((3e11, 0.7), (1e12, 0.6))}
    truth = with_curve("gemm", compute=(series,), overhead=5e-6)
    some = [p for p in STORED["gemm"].points if p.name == "y = x W^T" and p.flops < 4e11][::3]
    made = [replace(p, seconds=priced_s(p, truth) + CLOCK_S) for p in some]
    fit = refit("gemm", made, H200, CLOCK_S, "here")
    assert fit.median_error < 0.01
    assert fit.curve.compute[0].points[0][1] == pytest.approx(0.7, rel=0.05)
    assert fit.curve.compute[0].half_depth == pytest.approx(300, rel=0.15)
    # No fp8 was timed: its figures stay, and of the format that was, intervals hold the truth.
    assert "compute.1.points.0.1" in fit.carried
    share = next(one for one in fit.estimates if one.name == "compute.0.points.0.1")
    assert share.low < 0.7 < share.high


def test_what_no_point_tells_is_another_parts_and_says_so():
    some = [p for p in STORED["gemm"].points if p.name == "y = x W^T"][::6]
    fit = refit("gemm", some, replace(H200, id="other"), CLOCK_S, "here")
    assert fit.curve.part == "other"
    assert fit.curve.grade == "measured"
    assert [series.grade for series in fit.curve.compute] == [None, "scaled", "scaled", "scaled", "scaled"]
    assert fit.curve.sustained.grade == "scaled"


@pytest.mark.parametrize("kind", ["copy", "cast_up", "fill", "gather", "norm", "transpose", "broadcast"])
def test_shipped_points_lie_close_to_a_curve_fitted_to_them(kind):
    points = [p for name in ("elementwise", "matrix_rows") for p in STORED[name].points]
    fit = refit(kind, points, H200, 4.32e-6, "here")
    assert fit.median_error < 0.03
    assert fit.worst_error < 0.10
    assert all(one.high / one.low < 1.5 for one in fit.estimates if one.name != "overhead")


def test_long_matmuls_chains_and_single_points_are_not_fitted():
    long = [p for p in STORED["gemm"].points if p.seconds > 1e-3]
    assert refit("gemm", long, H200, CLOCK_S, "here") is None
    assert refit("sort", STORED["router"].points, H200, CLOCK_S, "here") is None
    assert refit("split_copy", STORED["tensor_lists"].points, H200, CLOCK_S, "here") is None
