import pytest

from simulator.forecast.uncertainty import RELATIVE_ERROR, interval, widest


def test_independent_parts_add_in_squares() -> None:
    # 3 s at 5 % and 1 s at 15 %: sigma is sqrt(0.15^2 + 0.15^2) = 0.2121 s.
    assert (RELATIVE_ERROR["measured"], RELATIVE_ERROR["datasheet"]) == (0.05, 0.15)
    found = interval(4.0, {("gemm", "measured"): 3.0, ("all_gather", "datasheet"): 1.0})
    assert found["p50"] == 4.0
    assert found["p90"] - 4.0 == pytest.approx(1.2816 * 0.2121, rel=1e-3)
    assert 4.0 - found["p10"] == pytest.approx(1.2816 * 0.2121, rel=1e-3)


def test_time_is_never_negative() -> None:
    assert interval(1.0, {("gemm", "assumed"): 100.0})["p10"] == 0.0


def test_a_step_of_nothing_is_certain() -> None:
    assert interval(0.0, {}) == {"p10": 0.0, "p50": 0.0, "p90": 0.0}


def test_the_widest_parts_come_first_by_time_and_grade() -> None:
    parts = {
        ("gemm", "measured"): 4.0,
        ("all_to_all", "assumed"): 1.0,
        ("norm", "measured"): 0.1,
        ("idle", "scaled"): 0,
    }
    assert widest(parts, 2) == ["all_to_all (assumed)", "gemm (measured)"]
    assert widest(parts, 9) == ["all_to_all (assumed)", "gemm (measured)", "norm (measured)"]
