"""Megatron-Core's routing trace: ``router_trace_rank*.jsonl`` of ``--moe-routing-trace-path``, one file a rank.

A line is one layer in one step: ``step``, ``layer``, ``rank``, ``num_tokens``, ``topk`` and ``top_indices``, the
experts of each token. Lines of multi-token-prediction modules (``mtp_idx``) are left out. Files do not tell the number
of experts; it is taken as one more than the highest that was chosen. The binary side files are not needed.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from simulator.routing.recording import MAX_EXPERTS, MAX_LAYERS, Batch, Hear, Recording, joint_name, refuse
from simulator.routing.table import IntArray

FOLDER = "*rank*.jsonl"
MAX_LINE_BYTES = 256_000_000
_BRACKETS = bytes.maketrans(b"[]", b"  ")


def recognises(file: Path, head: bytes) -> bool:
    """By its suffix and a key that every line has."""
    return file.suffix.lower() in {".jsonl", ".ndjson"} and b'"top_indices"' in head


def record(files: list[Path], choice: str) -> Recording:  # noqa: ARG001, there is nothing to choose
    """The recording that *files* hold together."""
    return Recording(joint_name(files), lambda hear: _batches(files, hear))


def _batches(files: list[Path], hear: Hear) -> Iterator[Batch]:
    total, done = sum(file.stat().st_size for file in files), 0
    for file in files:
        with file.open("rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES), b""), 1):
                done += len(line)
                hear(done / total)
                if line.strip():
                    yield from _batch(line, file, number)


def _batch(line: bytes, file: Path, number: int) -> Iterator[Batch]:
    fields, indices = _fields(line, file, number)
    if "mtp_idx" in fields:
        return
    bounds = {"step": 2**62, "layer": MAX_LAYERS, "rank": 2**31, "num_tokens": 2**31, "topk": 2**10}
    step, layer, rank, tokens, top_k = (_whole(fields, name, most, file, number) for name, most in bounds.items())
    if not tokens:
        return
    if indices.size != tokens * top_k:
        raise refuse(file, f"has {indices.size} top_indices, expected {tokens} tokens * {top_k}", number)
    if indices.min() < -1 or indices.max() >= MAX_EXPERTS:
        found = f"has top_indices from {indices.min()} to {indices.max()}"
        raise refuse(file, f"{found}, expected 0 to {MAX_EXPERTS - 1}", number)
    yield Batch(layer, step, rank, picks=indices.reshape(tokens, top_k))


def _fields(line: bytes, file: Path, number: int) -> tuple[dict[str, Any], IntArray]:
    """A line's object, and its top_indices one after the other."""
    head, mark, tail = line.partition(b'"top_indices":')
    lists, _, rest = tail.partition(b"]]")
    try:
        # Cut out of the line, the indices are read several times as fast as by a JSON parser.
        if rest:
            fields = json.loads(head + mark + b"0" + rest)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                indices = np.fromstring(lists.translate(_BRACKETS), dtype=np.int64, sep=",")
        else:
            fields = json.loads(line)
            indices = np.array(fields["top_indices"]).ravel()
        valid = isinstance(fields, dict) and (indices.dtype.kind == "i" or not indices.size)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, DeprecationWarning):
        valid = False
    if not valid:
        raise refuse(file, "is not a JSON object with top_indices as lists of whole numbers", number)
    return fields, indices


def _whole(fields: dict[str, Any], name: str, most: int, file: Path, number: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value < most:
        found = json.dumps(value)[:60]
        raise refuse(file, f"found {found}, expected a whole number from 0 to {most - 1}", number, name)
    return value
