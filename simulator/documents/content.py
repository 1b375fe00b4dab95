"""The bytes of a file that a user names: whatever it is, it is opened only if it is a file, and read only so far."""

from __future__ import annotations

import stat
from pathlib import Path

from simulator.documents.problem import Problem
from simulator.documents.tree import Unreadable


def read_bytes(path: Path, most: int, expected: str = "") -> bytes:
    """The bytes of the file *path*. Raise :exc:`Unreadable` if it is no file, cannot be read or has more than *most*.

    *expected* says what a file of that kind holds.
    """
    try:
        # A device or a pipe could be endless, and opening a pipe waits for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise refusal(path, "is a folder, expected a file" if path.is_dir() else "is not a regular file")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError:
        raise refusal(path, "no such file") from None
    except (OSError, ValueError) as error:
        raise refusal(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > most:
        raise refusal(path, f"larger than {most // 1_000_000} MB" + (f", expected {expected}" if expected else ""))
    return content


def refusal(path: Path, message: str) -> Unreadable:
    """What to raise for *path* as a whole."""
    return Unreadable(Problem(str(path), None, "", message))
