"""Reading safetensors files: eight bytes of length, a JSON header of that length, then raw arrays, little-endian.

Format: github.com/huggingface/safetensors. Nothing in such a file can run; what is checked is that the header is one
and that every array lies within the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from simulator.documents.problem import escape
from simulator.routing.recording import refuse

MAX_HEADER_BYTES = 100_000_000
_DTYPES = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "U16": "<u2", "U32": "<u4",
           "F64": "<f8", "F32": "<f4", "F16": "<f2"}  # fmt: skip


def tensors(file: Path) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Name and content of each array in *file*, in the order of the header, one in memory at a time."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise refuse(file, f"is not a safetensors file: its header would have {length} bytes, the file has {size}")
        for name, (dtype, shape, begin, end) in _entries(file, stream.read(length), size - 8 - length).items():
            stream.seek(8 + length + begin)
            yield name, np.frombuffer(stream.read(end - begin), dtype=dtype).reshape(shape)


def _entries(file: Path, text: bytes, data_bytes: int) -> dict[str, tuple[str, list[int], int, int]]:
    try:
        header = json.loads(text)
        entries = {name: _entry(value) for name, value in header.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        message = escape(f"{type(error).__name__}: {error}")
        raise refuse(file, f"is not a safetensors file: its header is not understood ({message})") from None
    for name, (dtype, shape, begin, end) in entries.items():
        if not 0 <= begin <= end <= data_bytes or end - begin != prod(shape) * np.dtype(dtype).itemsize:
            raise refuse(
                file, f"lies at bytes {begin} to {end} of {data_bytes}, with shape {shape}", where=escape(name)
            )
    return entries


def _entry(value: dict[str, Any]) -> tuple[str, list[int], int, int]:
    shape, (begin, end) = value["shape"], value["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError("shapes and offsets are whole numbers")
    if value["dtype"] not in _DTYPES:
        raise ValueError(f"number format {value['dtype']!r}, allowed: {', '.join(_DTYPES)}")
    return _DTYPES[value["dtype"]], shape, begin, end
