from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.hardware.accelerator import UnsupportedDtypeError
from simulator.hardware.curve import Curve
from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator

HERE = Path()
H200 = load_accelerator("h200-sxm", HERE)
PLAIN = Curve.model_validate(
    {"kind": "gemm", "part": "h200-sxm", "source": "made up", "grade": "measured", "spread": 0.1, "overhead": "2 us"}
    | {
        "compute": [{"by": "flops", "points": [[1, 0.5]], "dtype": "bf16"}],
        "memory": [{"by": "bytes", "points": [[1, 0.8]]}],
    }
)


def with_curve(**changes):
    curve = Curve.model_validate(PLAIN.model_dump() | changes)
    return replace(H200, curves={"gemm": (curve,)})


def faster(accelerator, factor):
    figure = accelerator.sheet.hbm_bandwidth
    rate = figure.model_copy(update={"value": figure.value * factor})
    return replace(accelerator, sheet=accelerator.sheet.model_copy(update={"hbm_bandwidth": rate}))


def test_the_slower_roof_plus_the_start():
    part = with_curve()
    assert kernel_time(part, "gemm", 989e9, 1).seconds == pytest.approx(2e-3 + 2e-6)
    assert kernel_time(part, "gemm", 1, 4.8e9).seconds == pytest.approx(1.25e-3 + 2e-6)


def test_a_kernel_that_the_clock_bounds_is_slower_within_a_step_than_alone():
    limit = {"sustained": {"value": 0.8, "source": "made up", "grade": "measured"}}
    part = with_curve(compute=[], serial={"tokens": 10, "step": "1 ms"}, **limit)
    # 4.8 GB at 0.8 of 4.8 TB/s take 1.25 ms, two steps of 10 tokens 2 ms: at 0.8 of the clock 1.5625 and 2.5 ms.
    assert kernel_time(part, "gemm", 0, 4.8e9).seconds == pytest.approx(1.5625e-3 + 2e-6)
    assert kernel_time(part, "gemm", 0, 4.8e9, (20,)).seconds == pytest.approx(2.5e-3 + 2e-6)
    assert kernel_time(part, "gemm", 0, 4.8e9, (20,), alone=True).seconds == pytest.approx(2e-3 + 2e-6)


def test_ranks_are_priced_together():
    times = kernel_time(with_curve(), "gemm", np.array([0.0, 989e9, 1.0]), np.array([0.0, 1.0, 4.8e9]))
    assert times.seconds == pytest.approx([0.0, 2.002e-3, 1.252e-3])


def test_no_work_takes_no_time_and_the_smallest_work_takes_some():
    assert kernel_time(H200, "gemm", 0, 0).seconds == 0
    for kind in H200.curves:
        assert kernel_time(H200, kind, 0, 1).seconds > 0


def test_short_inner_dimensions_pay_for_filling_the_tile():
    part = with_curve(compute=[{"by": "flops", "points": [[1, 0.5]], "dtype": "bf16", "half_depth": 1000}])
    deep = kernel_time(part, "gemm", 989e9, 0, (1, 1, 1_000_000_000)).seconds - 2e-6
    short = kernel_time(part, "gemm", 989e9, 0, (1, 1, 1000)).seconds - 2e-6
    assert short == pytest.approx(2 * deep)


def test_below_the_shortest_measured_depth_the_share_stays():
    series = {"by": "flops", "points": [[1, 0.5]], "dtype": "bf16", "half_depth": 1000, "depth_from": 1000}
    part = with_curve(compute=[series])
    thin, measured = (kernel_time(part, "gemm", 989e9, 0, (1, 1, k)).seconds for k in (8, 1000))
    assert thin == measured


def bf16(**form):
    return [{"by": "flops", "points": [[1, 0.5]], "dtype": "bf16"} | form]


def test_rows_are_padded_to_tiles_and_tiles_to_waves():
    part = with_curve(compute=bf16(tiling={"tiles": [[100, 50]]}))
    flops = 2.0 * 101 * 100 * 10
    one = kernel_time(part, "gemm", flops, 0, (100, 10), rows=np.array([101, 0])).seconds - 2e-6
    # 101 rows are 2 tiles high and 2 wide; 4 tiles take a wave of 132 compute units.
    done = 132 * 100 * 50 * 10 * 2
    assert one == pytest.approx(done / (989e12 * 0.5))


def test_rows_of_the_weight_gradient_are_the_depth_of_its_tiles():
    part = with_curve(compute=bf16(tiling={"tiles": [[100, 50]]}, half_depth=30))
    flops = 2.0 * 80 * 150 * 50
    ask = (part, "gemm", flops, 0, (150, 50))
    seconds = kernel_time(*ask, rows=np.array([60, 20, 0]), weight_gradient=True).seconds - 2e-6
    # 150 x 50 is made as 200 x 50; two experts of 40 rows on average cost 70 inner elements each.
    assert seconds == pytest.approx(flops * 200 / 150 * 70 / 40 / (989e12 * 0.5))


def test_attention_of_few_rows_waits_for_its_last_blocks():
    series = {"by": "length", "points": [[1, 0.5]], "dtype": "bf16", "half_rows": 100, "half_depth": 500}
    attention = Curve.model_validate(PLAIN.model_dump() | {"kind": "attention", "compute": [series]})
    part = replace(H200, curves={"attention": (attention,)})
    flops = 2 * 8 * 1000 * 128 * 1000
    seconds = kernel_time(part, "attention", flops, 0, (8, 128, 1000)).seconds - 2e-6
    # 8 heads x 1000 rows over 132 units are 60.6 rows a unit.
    assert seconds == pytest.approx(flops / (989e12 * 0.5) * (1 + 500 / 1000 + 100 * 132 / 8000))


def test_roofs_blur_where_they_meet():
    part = with_curve(compute=bf16(ridge=2))
    seconds = kernel_time(part, "gemm", 3 * 989e9, 4 * 4.8e9 * 0.8 * 2).seconds - 2e-6
    assert seconds == pytest.approx(10e-3)


def test_one_hot_expert_costs_more_than_the_same_rows_spread():
    spread = np.array([[256, 256, 256, 256], [1021, 1, 1, 1]])
    flops = np.full(2, 2.0 * 1024 * 7168 * 2048)
    even, hot = kernel_time(H200, "grouped_gemm", flops, 1e6, (7168, 2048), rows=spread).seconds
    assert hot > even


def test_a_format_that_the_part_lacks_is_refused_by_name():
    a100 = load_accelerator("a100-80g-sxm", HERE)
    with pytest.raises(UnsupportedDtypeError, match=r"a100-80g-sxm has no fp8 .* it has bf16"):
        kernel_time(a100, "gemm", 1e12, 1e9, (1024, 1024, 1024), "fp8")


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(KeyError, match="did you mean attention"):
        kernel_time(H200, "atention", 1, 1)


def test_measured_where_measured_and_scaled_where_carried_over():
    ascend = load_accelerator("ascend-910c", HERE)
    own, carried = (kernel_time(part, "attention", 1e12, 1e8, (32, 128, 8192)) for part in (H200, ascend))
    assert (own.grade, carried.grade) == ("measured", "scaled")
    assert carried.spread > own.spread
    # Compute units enter through the last blocks of a head: 24 cores wait less for them than 132 multiprocessors.
    assert carried.seconds == pytest.approx(own.seconds * 989 / 752, rel=0.05)
    assert kernel_time(H200, "scan", 0, 1e9).grade == "assumed"
    assert kernel_time(H200, "gemm", 1e12, 1e8, (1, 1, 4096), "fp32").grade == "scaled"


def test_backward_of_a_part_measured_forward_only_comes_from_the_next_part():
    h100 = load_accelerator("h100-sxm", HERE)
    shape = (32, 128, 8192)
    assert kernel_time(h100, "attention", 1e12, 1e8, shape).grade == "measured"
    back = kernel_time(h100, "attention", 1e12, 1e8, shape, backward=True)
    assert back.grade == "scaled"
    assert back.seconds == pytest.approx(kernel_time(H200, "attention", 1e12, 1e8, shape, backward=True).seconds)


@given(
    kind=st.sampled_from(sorted(H200.curves)),
    flops=st.floats(min_value=0, max_value=1e16),
    traffic=st.floats(min_value=0, max_value=1e12),
    factor=st.floats(min_value=1, max_value=100),
)
def test_more_bandwidth_is_never_slower(kind, flops, traffic, factor):
    dtype = "fp8" if kind == "indexer" else "bf16"
    ask = (kind, flops, traffic, (64, 128, 4096), dtype)
    assert kernel_time(faster(H200, factor), *ask).seconds <= kernel_time(H200, *ask).seconds


@given(
    kind=st.sampled_from(sorted(H200.curves)),
    flops=st.floats(min_value=0, max_value=1e16),
    traffic=st.floats(min_value=0, max_value=1e12),
)
def test_time_is_finite_and_never_below_the_sheet(kind, flops, traffic):
    dtype = "fp8" if kind == "indexer" else "bf16"
    seconds = float(kernel_time(H200, kind, flops, traffic, (64, 128, 4096), dtype).seconds)
    assert np.isfinite(seconds)
    assert seconds >= traffic / H200.hbm_bandwidth_bytes_per_s
