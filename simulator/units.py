"""Quantities at the file boundary: "141 GiB", "400 Gbit/s", "3 us" in, plain SI numbers inside, human strings out.

Decimal prefixes are powers of 1000 and binary ones powers of 1024. A plain number is taken as SI. Infinite,
not-a-number and negative quantities are refused, so a data file cannot smuggle in a negative bandwidth.
"""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BeforeValidator, Field

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_PREFIX = _DECIMAL | _BINARY
_BASES = {
    "bytes": {"B": 1.0},
    "bytes_per_s": {"B/s": 1.0, "bit/s": 0.125, "b/s": 0.125},
    "flops_per_s": {"FLOP/s": 1.0, "OP/s": 1.0},
}
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": HOUR_S, "d": DAY_S}
_UNITS = {
    kind: {p + base: f * g for base, f in bases.items() for p, g in _PREFIX.items()} for kind, bases in _BASES.items()
}
_UNITS["seconds"] = _SECONDS
_EXAMPLE = {"bytes": "141 GiB", "bytes_per_s": "400 Gbit/s", "flops_per_s": "989 TFLOP/s", "seconds": "3 us"}
_QUANTITY = re.compile(r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/]*)\s*")


def parse(value: object, kind: str) -> float:
    """Read *value*, a number in SI or a text such as "141 GiB", as a quantity of *kind*.

    *kind* is bytes, bytes_per_s, flops_per_s or seconds. Raise :exc:`ValueError` for anything else, with an example.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"found {value!r}, expected a quantity such as {_EXAMPLE[kind]!r}")
    number = _from_text(value, kind) if isinstance(value, str) else _double(value)
    if not math.isfinite(number):
        raise ValueError(f"found {_shown(value)}, expected a finite quantity such as {_EXAMPLE[kind]!r}")
    if number < 0:
        raise ValueError(f"found {_shown(value)}, a quantity of {kind} cannot be negative")
    return number


def _double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shown(value: float | str) -> str:
    """Python refuses to print integers of more than 4300 digits, so those too large for a double are not printed."""
    if isinstance(value, int) and math.isinf(_double(value)):
        return f"an integer of {value.bit_length()} bits"
    return repr(value)[:60]


def _from_text(text: str, kind: str) -> float:
    match = _QUANTITY.fullmatch(text)
    units = _UNITS[kind]
    if not match or match[2] not in {"", *units}:
        known = f"; units: {', '.join(_SECONDS)}" if kind == "seconds" else ""
        raise ValueError(f"found {text[:60]!r}, expected a quantity such as {_EXAMPLE[kind]!r}{known}")
    return float(match[1]) * units.get(match[2], 1.0)


def _validator(kind: str) -> BeforeValidator:
    return BeforeValidator(lambda value: parse(value, kind), json_schema_input_type=float | str)


Bytes = Annotated[float, _validator("bytes"), Field(examples=[_EXAMPLE["bytes"]])]
BytesPerSecond = Annotated[float, _validator("bytes_per_s"), Field(examples=[_EXAMPLE["bytes_per_s"]])]
FlopsPerSecond = Annotated[float, _validator("flops_per_s"), Field(examples=[_EXAMPLE["flops_per_s"]])]
Seconds = Annotated[float, _validator("seconds"), Field(examples=[_EXAMPLE["seconds"]])]


def human_bytes(value: float) -> str:
    """*value* bytes with a decimal prefix: 43400000000.0 -> '43.4 GB'."""
    return _human(value, "B")


def human_rate(value: float) -> str:
    """*value* bytes per second with a decimal prefix."""
    return _human(value, "B/s")


def human_count(value: float) -> str:
    """A large count as people say it: 2779931837184 -> '2.78 T'."""
    for factor, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {name}"
    return f"{value:.4g}"


def plain_number(value: float, digits: int = 3) -> str:
    """So many significant *digits*, with thousands apart: 12,300 and 8.41."""
    return f"{float(f'{value:.{digits}g}'):,.15g}"


def human_time(value: float) -> str:
    """*value* seconds: '8.41 s', '12.3 ms', '45 us', '2.1 h'."""
    if value >= 7200:
        return f"{_three_digits(value / 3600)} h"
    for factor, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= factor:
            return f"{_three_digits(value / factor)} {name}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _human(value: float, unit: str) -> str:
    for prefix in ("P", "T", "G", "M", "k"):
        if abs(value) >= _DECIMAL[prefix]:
            return f"{value / _DECIMAL[prefix]:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"
