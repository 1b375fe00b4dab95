"""Expert counts in CSV: one line a (layer, expert) pair, under the header ``layer,expert,count``.

The columns may stand in any order and may be called ``layer_id`` and ``expert_id``, as in older SGLang dumps. A pair
without a line was never chosen.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from simulator.documents import Problem
from simulator.documents.problem import escape
from simulator.routing.error import RoutingError
from simulator.routing.readers.json_counts import MAX_COUNT, MAX_PROBLEMS
from simulator.routing.recording import MAX_EXPERTS, MAX_LAYERS, Batch, Hear, Recording
from simulator.routing.table import FloatArray
from simulator.routing.text import read_text

FOLDER = ""
_ALIASES = {"layer_id": "layer", "expert_id": "expert"}
_COLUMNS = ("layer", "expert", "count")


def recognises(file: Path, head: bytes) -> bool:  # noqa: ARG001, the name tells
    """By the suffix."""
    return file.suffix.lower() == ".csv"


def record(files: list[Path], choice: str) -> Recording:  # noqa: ARG001, there is nothing to choose
    """The counts in the one file. Raise :exc:`RoutingError` with all problems and their lines."""
    (path,) = files
    counts = _counts(read_text(path), str(path))
    return Recording(path.stem, lambda hear: _batches(counts, hear))


def _batches(counts: FloatArray, hear: Hear) -> Iterator[Batch]:
    for layer, row in enumerate(counts):
        yield Batch(layer, counts=row)
    hear(1.0)


def _counts(text: str, file: str) -> FloatArray:
    """[layers, experts]."""
    lines = _lines(text, file)
    number, header = next(lines, (1, []))
    columns = [_ALIASES.get(name.strip().lower(), name.strip().lower()) for name in header]
    if sorted(columns) != sorted(_COLUMNS):
        message = f"found the header {escape(','.join(header)) or '(none)'}, expected {','.join(_COLUMNS)}"
        raise RoutingError([Problem(file, number, "", message)])
    order = [columns.index(name) for name in _COLUMNS]
    problems: list[Problem] = []
    seen: dict[tuple[int, int], tuple[float, int]] = {}
    for number, fields in lines:
        if len(problems) == MAX_PROBLEMS:
            break
        fault = _enter(fields, order, number, seen)
        if fault:
            problems.append(Problem(file, number, "", fault))
    if not seen and not problems:
        problems.append(Problem(file, number, "", "found no counts under the header"))
    if problems:
        raise RoutingError(problems)
    counts = np.zeros((1 + max(layer for layer, _ in seen), 1 + max(expert for _, expert in seen)))
    for pair, (count, _) in seen.items():
        counts[pair] = count
    return counts


def _lines(text: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Each line that is not blank, with its number."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                yield reader.line_num, fields
    except csv.Error as error:
        raise RoutingError([Problem(file, reader.line_num, "", f"is not CSV: {error}")]) from None


def _enter(fields: list[str], order: list[int], number: int, seen: dict[tuple[int, int], tuple[float, int]]) -> str:
    """Put one line into *seen*, or say what is wrong with it."""
    if len(fields) != len(_COLUMNS):
        return f"found {len(fields)} fields, expected {len(_COLUMNS)}"
    layer, expert = (_index(fields[at]) for at in order[:2])
    if layer is None or layer >= MAX_LAYERS:
        return f"found layer {escape(fields[order[0]])!r}, expected a whole number from 0 to {MAX_LAYERS - 1}"
    if expert is None or expert >= MAX_EXPERTS:
        return f"found expert {escape(fields[order[1]])!r}, expected a whole number from 0 to {MAX_EXPERTS - 1}"
    count = _number(fields[order[2]])
    if not 0 <= count <= MAX_COUNT:
        return f"found count {escape(fields[order[2]])!r}, expected a number from 0 to {MAX_COUNT:g}"
    _, earlier = seen.setdefault((layer, expert), (count, number))
    return f"layer {layer}, expert {expert} was given in line {earlier} already" if earlier != number else ""


def _index(text: str) -> int | None:
    number = text.strip()
    return int(number) if re.fullmatch(r"[0-9]{1,9}", number) else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
