"""What the importers share: the error of a damaged dump, and text without the colours of a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable

from simulator.documents.problem import escape

_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_HIGHEST_NUMBER = 1_000_000


class BadDump(ValueError):  # noqa: N818, the name says what is wrong
    """A dump that cannot be used; *problems* lists (line or None, message)."""

    def __init__(self, problems: Iterable[tuple[int | None, str]]) -> None:
        self.problems: tuple[tuple[int | None, str], ...] = tuple(problems)
        super().__init__(self.problems)


def bad(message: str, line: int | None = None) -> BadDump:
    """The error that says *message* about *line*."""
    return BadDump([(line, message)])


def printable(text: str) -> str:
    """*text* without what sets colours and underlines (nvidia-smi underlines its header), lines ended by newlines."""
    return _TERMINAL.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def whole(word: str, what: str, line: int | None, *, least: int = 0, most: int = _HIGHEST_NUMBER) -> int:
    """*word* as an integer from *least* to *most*. Raise :exc:`BadDump` that names *what*."""
    if not (word.isascii() and word.isdigit()) or len(word) > len(str(most)) + 3 or not least <= int(word) <= most:
        raise bad(f"{what} is {escape(word)!r}, expected an integer from {least} to {most:,}", line)
    return int(word)


def number(word: str, what: str, line: int | None, *, most: float = 1e9) -> float:
    """*word* as a finite number from 0 to *most*. Raise :exc:`BadDump` that names *what*."""
    if not re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{0,12})?(?:[eE][-+]?[0-9]{1,2})?", word) or float(word) > most:
        raise bad(f"{what} is {escape(word)!r}, expected a number from 0 to {most:g}", line)
    return float(word)
