import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from simulator.hardware.curve import ComputeSeries, Curve, Series, choose, pick

STEPS = Series(by="flops", points=((1e6, 0.2), (1e8, 0.6)))


def curve(part, **series):
    return Curve.model_validate(
        {"kind": "gemm", "part": part, "source": "here", "grade": "measured", "spread": 0.1, "overhead": "2 us"}
        | {"memory": [{"by": "bytes", "points": [[1e6, 0.8]]}]}
        | series
    )


def series(dtype="bf16", **more):
    return {"by": "flops", "points": [[1e6, 0.5]], "dtype": dtype} | more


def test_half_way_in_the_logarithm_is_half_way_in_the_share():
    assert STEPS.share(np.array(1e7)) == pytest.approx(0.4)


def test_beyond_the_ends_the_share_stays():
    assert STEPS.share(np.array([0.0, 1.0, 1e20])) == pytest.approx([0.2, 0.2, 0.6])


@given(st.floats(min_value=0, max_value=1e30))
def test_a_share_never_leaves_its_points(size):
    assert 0.2 <= float(STEPS.share(np.array(size))) <= 0.6


def test_points_must_rise():
    with pytest.raises(ValidationError, match="found 1e"):
        Series(by="flops", points=((1e8, 0.2), (1e6, 0.6)))


def test_the_nearest_series_agrees_in_format_then_direction_then_head_width():
    wide = ComputeSeries(by="length", points=((1, 0.1),), dtype="bf16", backward=False, head_dim=192)
    narrow = ComputeSeries(by="length", points=((1, 0.2),), dtype="bf16", backward=False, head_dim=64)
    back = ComputeSeries(by="length", points=((1, 0.3),), dtype="bf16", backward=True, head_dim=64)
    other = ComputeSeries(by="length", points=((1, 0.4),), dtype="fp8")
    every = (other, back, narrow, wide)

    def picked(dtype, *, backward, head_dim):
        return pick(every, dtype, backward=backward, head_dim=head_dim, weight_gradient=False, even_parts=True)

    assert picked("bf16", backward=False, head_dim=160) is wide
    assert picked("bf16", backward=False, head_dim=64) is narrow
    assert picked("fp16", backward=True, head_dim=192) is back
    assert picked("fp8", backward=True, head_dim=192) is other


def nearest(every, dtype, *, weight_gradient=False, even_parts=True):
    """Of a backward pass."""
    known = {"backward": True, "head_dim": None}
    return pick(every, dtype, **known, weight_gradient=weight_gradient, even_parts=even_parts)


def test_scales_decide_between_series_of_one_format_and_not_between_parts():
    whole, rows = (ComputeSeries(by="flops", points=((1, 0.5),), dtype=dtype) for dtype in ("fp8", "fp8/rowwise"))
    for asked, found in (("fp8", whole), ("fp8/rowwise", rows), ("fp8/mx", whole)):
        assert nearest((whole, rows), asked) is found
    own, other = curve("a", compute=[whole]), curve("b", compute=[rows])
    assert choose((own, other), "fp8/rowwise", backward=False) is own


def test_the_gradient_of_weights_has_a_series_of_its_own():
    rows = Series(by="bytes", points=((1, 0.7),), weight_gradient=False)
    weights = Series(by="bytes", points=((1, 0.5),), weight_gradient=True)
    for wanted, asked in ((rows, False), (weights, True)):
        assert nearest((rows, weights), "bf16", weight_gradient=asked) is wanted


def test_unequal_parts_have_a_series_of_their_own():
    equal, unequal = (Series(by="bytes", points=((1, 0.7),), even_parts=even) for even in (True, False))
    for wanted, asked in ((equal, True), (unequal, False)):
        assert nearest((equal, unequal), "bf16", even_parts=asked) is wanted


def test_a_part_without_the_format_hands_over_to_the_next_part():
    own, other = curve("a", compute=[series("fp8")]), curve("b", compute=[series("bf16")])
    assert choose((own, other), "fp8", backward=False) is own
    assert choose((own, other), "bf16", backward=False) is other
    assert choose((own, other), "fp4", backward=False) is own
