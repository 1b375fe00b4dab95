"""Plain YAML 1.2 scalars: what `80e9`, `no`, `~` and `0x10` mean by the core schema (YAML 1.2.2, section 10.3).

`no` is a text and `80e9` a number, unlike in YAML 1.1. Numbers that a forecast could not carry, such as infinities,
not-a-number and integers beyond 64 bits, are refused here, before anything computes with them.
"""

from __future__ import annotations

import math
import re

Scalar = str | int | float | bool | None

_CONSTANTS: dict[str, Scalar] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_LONGEST_INTEGER = 40
_INTEGER_BITS = 64


def resolve(text: str) -> Scalar:
    """The value that the plain scalar *text* stands for.

    Raise :exc:`ValueError` for infinities, not-a-number and integers beyond 64 bits.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"found {text[:40]}, a number too large for a double; allowed: up to 1.8e308")
        return number
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"found {text}, expected a finite number")
    return text


def check_text(text: str) -> str:
    """*text* itself; raise :exc:`ValueError` where it holds control characters or halves of surrogate pairs."""
    for character in text:
        if (character < " " and character not in "\t\n") or "\ud800" <= character <= "\udfff" or character == "\x7f":
            raise ValueError(f"found a text with the control character U+{ord(character):04X}, which is not allowed")
    return text


def _integer(text: str) -> int:
    """Length is looked at first: Python refuses to convert thousands of digits, as the time grows with their square."""
    digits = len(text.lstrip("+-"))
    if digits > _LONGEST_INTEGER:
        raise ValueError(f"found an integer of {digits} digits; allowed: integers of up to {_INTEGER_BITS} bits")
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    number = int(text, base)
    if number.bit_length() >= _INTEGER_BITS:
        raise ValueError(f"found {text}; allowed: integers of up to {_INTEGER_BITS} bits, or a float such as 1e21")
    return number
