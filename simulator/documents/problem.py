"""What is wrong with a document, said in one line a problem and safe to print.

Text that comes from the document is shortened and its control characters are escaped, so that a hostile file cannot
steer the reader's terminal or flood it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

_SHOWN_PROBLEMS = 100
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong at one place."""

    file: str
    """The file, or the override that brought the value ("--set parallel.ep=63")."""
    line: int | None
    """Counted from 1; None where no line is meant, as for a missing file or an override."""
    where: str
    """Dotted path of the value, such as "parallel.ep"; empty for the document as a whole."""
    message: str
    """What was found and what is allowed."""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(escape(part, None) for part in (place, self.where, self.message) if part)


class InvalidDocument(ValueError):  # noqa: N818, the name says what is wrong
    """A document that cannot be used; *problems* lists everything that is wrong with it, in order of line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems[:_SHOWN_PROBLEMS]]
        if len(self.problems) > _SHOWN_PROBLEMS:
            lines.append(f"... and {len(self.problems) - _SHOWN_PROBLEMS} more problems")
        return "\n".join(lines)


def escape(text: str, limit: int | None = _SHOWN_CHARACTERS) -> str:
    """*text* on one line, with unprintable characters escaped, cut to *limit* characters."""
    if limit is not None and len(text) > limit:
        text = text[:limit] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The ending of a message that refuses *word*: the nearest *allowed* word, if one is near, and all of them."""
    known = sorted(allowed)
    close = get_close_matches(word[:_SHOWN_CHARACTERS], known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}allowed: {', '.join(known) if known else 'nothing'}"
