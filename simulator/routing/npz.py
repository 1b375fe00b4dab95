"""Arrays of numpy's .npy and .npz files, some rows at a time, so that memory does not grow with the file.

Arrays of Python objects are refused: numpy would have to open a pickle for them. A compressed .npz is read as a stream
as well; a row that unpacks to more than a batch is refused with the file's other faults.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np

from simulator.documents.problem import escape
from simulator.routing.recording import refuse

BATCH_BYTES = 32_000_000
MAX_ROW_BYTES = 1_000_000_000


def names(file: Path) -> list[str]:
    """The arrays in the .npz *file*; of a .npy file one, without a name."""
    if file.suffix.lower() == ".npy":
        return [""]
    try:
        with zipfile.ZipFile(file) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
        raise refuse(file, f"is not an .npz archive: {error}") from None


def rows(file: Path, name: str) -> Iterator[np.ndarray[Any, Any]]:
    """The array *name* in pieces of some rows each, joined along the first axis; a single number is one piece."""
    try:
        if file.suffix.lower() == ".npy":
            with file.open("rb") as stream:
                yield from _pieces(stream, file, name)
        else:
            with zipfile.ZipFile(file) as archive, archive.open(f"{name}.npy") as stream:
                yield from _pieces(stream, file, name)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, KeyError, ValueError) as error:
        if hasattr(error, "problems"):
            raise
        raise refuse(file, f"cannot be read: {escape(str(error))}", where=escape(name)) from None


def decoded(content: bytes, file: Path, name: str) -> Iterator[np.ndarray[Any, Any]]:
    """The array in *content*, the bytes of a .npy that stood in *file*, as :func:`rows` yields one."""
    try:
        yield from _pieces(io.BytesIO(content), file, name)
    except (EOFError, ValueError) as error:
        if hasattr(error, "problems"):
            raise
        raise refuse(file, f"cannot be read: {escape(str(error))}", where=escape(name)) from None


def _pieces(stream: IO[bytes], file: Path, name: str) -> Iterator[np.ndarray[Any, Any]]:
    shape, fortran, dtype = _header(stream)
    if dtype.kind not in "biuf" or (fortran and len(shape) > 1):
        raise ValueError(f"it holds {dtype} in {'Fortran' if fortran else 'C'} order, expected numbers in C order")
    row_bytes = prod(shape[1:]) * dtype.itemsize
    if row_bytes > MAX_ROW_BYTES:
        raise refuse(file, f"has rows of {row_bytes} bytes, expected at most {MAX_ROW_BYTES}", where=escape(name))
    total = shape[0] if shape else 1
    step = max(1, BATCH_BYTES // max(1, row_bytes))
    for begin in range(0, total, step):
        count = min(step, total - begin)
        content = stream.read(count * row_bytes)
        if len(content) < count * row_bytes:
            raise EOFError("it breaks off")
        yield np.frombuffer(content, dtype=dtype).reshape((count, *shape[1:]) if shape else ())


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and type. Raise :exc:`ValueError` where there is no such header."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it is .npy version {version}, allowed: 1.0 and 2.0")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        return read(stream)
    except (SyntaxError, TokenError, TypeError, RecursionError) as error:
        # The header is a dictionary in Python's words: numpy lets through what parsing damaged ones raises.
        raise ValueError(f"its header is damaged: {error}") from None
