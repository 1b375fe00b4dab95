"""Files that appear whole or not at all.

Each is written beside its destination under a hidden name and then renamed over it, which is atomic within one folder
on POSIX and Windows. A run that is killed may leave the hidden file; it never leaves half of a result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def folder(path: Path) -> Path:
    """Create the folder *path* with its parents if need be. Raise :exc:`OSError` with a message for the user."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OSError(f"cannot write into {path}: a file is in the way of this folder") from None
    except OSError as error:
        raise OSError(f"cannot create the folder {path}: {_reason(error)}") from error
    return path


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that becomes *path* when the block ends, and vanishes when the block fails.

    Raise :exc:`OSError` with a message for the user where the file cannot be written; what was at *path* before stays.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with hidden.open("wb") as file:
            yield file
        hidden.replace(path)
    except OSError as error:
        raise OSError(f"cannot write {path}: {_reason(error)}") from error
    finally:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)


def write_text(text: str, file: BinaryIO) -> None:
    """Write *text* into *file*."""
    file.write(text.encode())


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
