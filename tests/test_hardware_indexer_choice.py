"""An indexer that chooses keys as it scores them: scores by heads, and the choice whatever the heads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernel_residuals import clock_s, points

from simulator.calibration.pricing import priced_s
from simulator.calibration.refit import refit
from simulator.hardware.curve import Curve
from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator

H200 = load_accelerator("h200-sxm", Path())
MADE_UP = Curve.model_validate(
    {
        "kind": "indexer_choice", "part": "h200-sxm", "source": "made up", "grade": "measured", "spread": 0.1,
        "overhead": 0.0, "choice": {"units": 132, "points": [[1000, 4e-11], [4000, 1e-11]]},
        "compute": [{"by": "length", "dtype": "fp8", "points": [[1000, 0.5]]}],
        "memory": [{"by": "bytes", "points": [[1, 0.8]]}],
    }
)  # fmt: skip


def seconds(part, heads, length, pairs):
    flops = 2 * heads * (128 + 1) * pairs
    return float(kernel_time(part, "indexer_choice", flops, 1.0, (heads, 128, length), "fp8").seconds)


def test_more_heads_take_more_scores_and_no_more_choice():
    part = replace(H200, curves={"indexer_choice": (MADE_UP,)})
    # A head: 258 FLOPs a pair at 989.5 TFLOP/s. The choice: 20 ps a pair, in the middle of the points on log scales.
    scores_s = 258 / (1979e12 * 0.5)
    for heads in (32, 64):
        assert seconds(part, heads, 2000, 1e6) == pytest.approx(1e6 * (heads * scores_s + 2e-11))


def test_more_compute_units_choose_faster():
    units = H200.sheet.sm_count.model_copy(update={"value": 264})
    part = replace(H200, sheet=H200.sheet.model_copy(update={"sm_count": units}), curves={"indexer_choice": (MADE_UP,)})
    unknown = replace(part, sheet=H200.sheet.model_copy(update={"sm_count": None}))
    scores_s = 32 * 258 / (1979e12 * 0.5)
    assert seconds(part, 32, 1000, 1e6) == pytest.approx(1e6 * (scores_s + 2e-11))
    assert seconds(unknown, 32, 1000, 1e6) == pytest.approx(1e6 * (scores_s + 4e-11))


def own(heads):
    return [p for p in points("own_kernels") if p.kind == "indexer_choice" and p.shape[0] in heads]


def errors(heads):
    return [(priced_s(p, H200) + clock_s()) / p.seconds - 1 for p in own(heads)]


def test_points_of_h200():
    # The curve is made of 32 and 64 heads, so that it meets them; 16 and 128 heads are told by it.
    assert len(errors({32, 64})) == 14
    assert np.abs(errors({32, 64})).max() < 0.001
    assert errors({16}) == [pytest.approx(-0.093, abs=0.002)]
    assert errors({128}) == [pytest.approx(0.120, abs=0.002)]


def test_a_part_that_chooses_twice_as_fast_is_found_to():
    curve = H200.curves["indexer_choice"][0]
    faster = curve.choice.model_copy(update={"points": tuple((n, s / 2) for n, s in curve.choice.points)})
    truth = replace(H200, curves={"indexer_choice": (curve.model_copy(update={"choice": faster}),)})
    timed = [replace(p, seconds=priced_s(p, truth) + clock_s()) for p in own({32, 64})]
    fit = refit("indexer_choice", timed, H200, clock_s(), "here")
    assert fit.worst_error < 0.02
    for (_, found), (_, wanted) in zip(fit.curve.choice.points, faster.points, strict=True):
        assert found == pytest.approx(wanted, rel=0.05)
