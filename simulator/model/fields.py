"""Fields: one JSON object of a `config.json`, read field by field.

It remembers which fields were read and collects every problem instead of stopping at the first, so a reader goes on
with a stand-in (1, False, an empty list) and the caller raises once. What nobody read and what cannot matter to cost
is told apart in `harmless_fields.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from simulator.model.harmless_fields import HARMLESS

LARGEST_SIZE = 10**9
"""No dim of any model comes near; a larger one is a slip, and would only fail later and worse."""
MOST_LAYERS = 10_000

_T = TypeVar("_T")


@dataclass(slots=True)
class Findings:
    """What reading one file brought to light."""

    problems: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    """Path of the field and what is wrong with it."""
    approximations: list[str] = field(default_factory=list)
    """What is read only approximately, one sentence each."""


class Fields:
    """The fields of one JSON object, at *path* inside the file."""

    def __init__(self, values: dict[str, object], findings: Findings, path: tuple[str, ...] = ()) -> None:
        self._values = values
        self._findings = findings
        self._path = path
        self._read: set[str] = set()
        self._parts: list[Fields] = []

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    @property
    def sound(self) -> bool:
        """Whether no problem has been found in the file so far; what follows from stand-ins is not worth saying."""
        return not self._findings.problems

    def problem(self, name: str, message: str) -> None:
        """Note what is wrong with the field *name*."""
        self._findings.problems.append(((*self._path, name), message))

    def approximate(self, sentence: str) -> None:
        """Note something that is read only approximately."""
        if sentence not in self._findings.approximations:
            self._findings.approximations.append(sentence)

    def size(self, name: str, default: int | None = None, limit: int = LARGEST_SIZE) -> int:
        """A whole number from 1 to *limit*."""
        return self._whole(name, default, 1, limit)

    def count(self, name: str, default: int | None = None, limit: int = LARGEST_SIZE) -> int:
        """A whole number from 0 to *limit*."""
        return self._whole(name, default, 0, limit)

    def optional_size(self, name: str) -> int | None:
        """A size, or None where the field is absent or null."""
        self._read.add(name)
        return self.size(name) if name in self else None

    def flag(self, name: str, default: bool = False) -> bool:
        """A truth value."""
        value = self._take(name, default)
        if isinstance(value, bool):
            return value
        self.problem(name, f"found {_shown(value)}, expected true or false")
        return default

    def text(self, name: str, default: str | None = None, allowed: Sequence[str] = ()) -> str:
        """A text, one of *allowed* where that is given."""
        value = self._take(name, default)
        if isinstance(value, str) and (not allowed or value in allowed):
            return value
        if value is not None or default is None:
            wanted = f"one of {', '.join(allowed)}" if allowed else "a text"
            self.problem(name, f"found {_shown(value)}, expected {wanted}" if name in self else f"missing: {wanted}")
        return default or (allowed[0] if allowed else "")

    def fraction(self, name: str, default: float) -> float:
        """A number from 0 to 1."""
        value = self._take(name, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
        self.problem(name, f"found {_shown(value)}, expected a number from 0 to 1")
        return default

    def whole_numbers(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """A list of whole numbers from 0."""
        return self._list(name, default, "whole numbers", lambda value: _is_whole(value, 0, LARGEST_SIZE))

    def texts(self, name: str, default: Sequence[str] | None = None) -> list[str]:
        """A list of texts."""
        return self._list(name, default, "texts", lambda value: isinstance(value, str))

    def part(self, name: str, required: bool = False) -> Fields | None:
        """The object below *name*, or None where it is absent or null."""
        value = self._take(name, None)
        if isinstance(value, dict):
            part = Fields(value, self._findings, (*self._path, name))
            self._parts.append(part)
            return part
        if value is not None:
            self.problem(name, f"found {_shown(value)}, expected an object")
        elif required:
            self.problem(name, "missing: an object")
        return None

    def ignore(self, *names: str) -> None:
        """Count *names* as read: this family's cost does not depend on them."""
        self._read.update(names)

    def ignore_rest(self) -> None:
        """Count every field of this object as read."""
        self._read.update(self._values)

    def is_list(self, name: str) -> bool:
        """Whether the field stands as a list."""
        return isinstance(self._values.get(name), list)

    def first(self, *names: str) -> str:
        """The first of several spellings that the file uses, else the first of all."""
        return next((name for name in names if name in self), names[0])

    def unread(self) -> Iterator[str]:
        """Dotted paths of the fields that nobody read and that may matter."""
        for name, value in self._values.items():
            if name not in self._read and name not in HARMLESS and value is not None:
                yield ".".join((*self._path, name))
        for part in self._parts:
            yield from part.unread()

    def _take(self, name: str, default: object) -> object:
        self._read.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def _whole(self, name: str, default: int | None, low: int, high: int) -> int:
        value = self._take(name, default)
        if isinstance(value, int) and _is_whole(value, low, high):
            return value
        wanted = f"a whole number from {low} to {high}"
        self.problem(name, f"missing: {wanted}" if value is None else f"found {_shown(value)}, expected {wanted}")
        return 1 if default is None else default

    def _list(self, name: str, default: Sequence[_T] | None, wanted: str, fits: Callable[[object], bool]) -> list[_T]:
        value = self._take(name, default)
        if isinstance(value, list | tuple) and len(value) <= MOST_LAYERS and all(fits(item) for item in value):
            return list(value)
        wanted = f"a list of at most {MOST_LAYERS} {wanted}"
        self.problem(name, f"missing: {wanted}" if value is None else f"found {_shown(value)}, expected {wanted}")
        return []


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _shown(value: object) -> str:
    """*value* as the file has it, cut short; a huge whole number by its digits, since printing it may be refused."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return f"a number of about {int(math.log10(abs(value))) + 1} digits"
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
