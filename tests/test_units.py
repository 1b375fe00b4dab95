import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.units import human_bytes, human_count, human_rate, human_time, parse, plain_number


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("141 GiB", "bytes", 141 * 2**30),
        ("141GB", "bytes", 141e9),
        ("5EB", "bytes", 5e18),
        ("1.5e3 kB", "bytes", 1.5e6),
        ("80e9", "bytes", 80e9),
        (12, "bytes", 12.0),
        ("400 Gbit/s", "bytes_per_s", 50e9),
        ("900 GB/s", "bytes_per_s", 900e9),
        ("8 Kib/s", "bytes_per_s", 1024.0),
        ("989 TFLOP/s", "flops_per_s", 989e12),
        ("1.979 POP/s", "flops_per_s", 1.979e15),
        ("3 us", "seconds", 3e-6),
        ("2 h", "seconds", 7200.0),
        (" .5 min ", "seconds", 30.0),
    ],
)
def test_quantities_read_as_si(value: object, kind: str, expected: float) -> None:
    assert parse(value, kind) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (
            "4 days",
            "seconds",
            "found '4 days', expected a quantity such as '3 us'; units: s, ms, us, ns, min, h, d",
        ),
        ("400 Gbps", "bytes_per_s", "found '400 Gbps', expected a quantity such as '400 Gbit/s'"),
        ("141 gib", "bytes", "found '141 gib', expected a quantity such as '141 GiB'"),
        ("1_000 B", "bytes", "found '1_000 B', expected a quantity such as '141 GiB'"),
        ("1e B", "bytes", "found '1e B', expected a quantity such as '141 GiB'"),
        ("", "bytes", "found '', expected a quantity such as '141 GiB'"),
        ("inf", "bytes", "found 'inf', expected a quantity such as '141 GiB'"),
        (True, "bytes", "found True, expected a quantity such as '141 GiB'"),
        (None, "bytes", "found None, expected a quantity such as '141 GiB'"),
        ("-1 GiB", "bytes", "found '-1 GiB', a quantity of bytes cannot be negative"),
        (-0.5, "seconds", "found -0.5, a quantity of seconds cannot be negative"),
        (math.nan, "seconds", "found nan, expected a finite quantity such as '3 us'"),
        ("1e999 s", "seconds", "found '1e999 s', expected a finite quantity such as '3 us'"),
        pytest.param(
            10**5000, "bytes", "found an integer of 16610 bits, expected a finite quantity such as '141 GiB'", id="huge"
        ),
    ],
)
def test_other_values_are_refused_with_an_example(value: object, kind: str, expected: str) -> None:
    with pytest.raises(ValueError, match="found") as caught:
        parse(value, kind)
    assert str(caught.value) == expected


@given(st.floats(min_value=0, max_value=1e15), st.sampled_from(["B", "kB", "GB", "GiB", "TiB"]))
def test_a_unit_only_scales(number: float, unit: str) -> None:
    assert parse(f"{number!r} {unit}", "bytes") == number * parse(f"1 {unit}", "bytes")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 s"),
        (3e-9, "3 ns"),
        (45e-6, "45 us"),
        (0.0123, "12.3 ms"),
        (0.9999, "1000 ms"),
        (8.412, "8.41 s"),
        (3600, "3600 s"),
        (7560, "2.1 h"),
    ],
)
def test_times_read_well(value: float, expected: str) -> None:
    assert human_time(value) == expected


def test_bytes_rates_and_counts_read_well() -> None:
    assert human_bytes(43.4e9) == "43.4 GB"
    assert human_bytes(12) == "12 B"
    assert human_rate(50e9) == "50 GB/s"
    assert human_count(2779931837184) == "2.78 T"
    assert human_count(671026419200) == "671 B"
    assert human_count(12) == "12"


@pytest.mark.parametrize(
    ("value", "digits", "expected"), [(12_345.6, 3, "12,300"), (8.413, 3, "8.41"), (18_432.0, 4, "18,430"), (0, 4, "0")]
)
def test_plain_numbers_have_thousands_apart_and_no_exponent(value: float, digits: int, expected: str) -> None:
    assert plain_number(value, digits) == expected
