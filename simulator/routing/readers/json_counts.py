"""Expert counts in JSON: SGLang's ``logical_count``, or ``counts_by_domain`` with one matrix a domain.

``{"logical_count": [[...], ...]}`` holds [layers, experts], or [steps, layers, experts]. It is what SGLang's
``--init-expert-location`` reads. Beside it may stand ``source``, a text, and ``layers_recorded``, the number of each
row's layer in the model. Other keys belong to the recorder and are left alone. A file with several domains needs one
named: ``olmoe-1b-7b.json#c4``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from simulator.documents import Problem
from simulator.documents.problem import escape, nearest
from simulator.routing.error import RoutingError
from simulator.routing.recording import Batch, Hear, Recording
from simulator.routing.table import FloatArray
from simulator.routing.text import read_text

FOLDER = ""

MAX_COUNT = 1e15
"""Whole numbers up to here, summed over experts and steps, stay exact enough in float64."""

MAX_PROBLEMS = 1_000
"""A file with more is not what it seems, and is not read on."""

OTHER_SUFFIXES = {".csv", ".jsonl", ".ndjson", ".npy", ".npz", ".pt", ".pth", ".bin", ".pkl", ".safetensors"}


def recognises(file: Path, head: bytes) -> bool:
    """Any file that no other format claims: what is wrong with it is said best as text."""
    return file.suffix.lower() not in OTHER_SUFFIXES and not head.startswith((b"PK\x03\x04", b"\x80"))


def record(files: list[Path], choice: str) -> Recording:
    """The counts in the one file, of the domain *choice* where it has several. Raise :exc:`RoutingError` with all
    problems.
    """
    (path,) = files
    file = str(path)
    document = _parse(read_text(path), file)
    problems: list[Problem] = []
    where, rows = _select(document, file, choice, problems)
    counts = None if problems else _stack(rows, where, file, problems)
    numbers = () if counts is None else _layer_numbers(document, where, counts.shape[1], file, problems)
    if problems or counts is None:
        raise RoutingError(problems)
    source = document.get("source", "")
    source = escape(source, 500) if isinstance(source, str) else ""
    return Recording(
        f"{path.stem}#{choice}" if choice else path.stem,
        lambda hear: _batches(counts, numbers, hear),
        f"{source}, {choice}" if choice and source else source or choice,
        numbered=bool(numbers),
    )


def _batches(counts: FloatArray, numbers: tuple[int, ...], hear: Hear) -> Iterator[Batch]:
    for step, layers in enumerate(counts):
        for row, layer in zip(layers, numbers or range(len(layers)), strict=True):
            yield Batch(layer, step, counts=row)
        hear((step + 1) / len(counts))


def _parse(text: str, file: str) -> dict[str, Any]:
    try:
        # Every number becomes a float, so an integer of a thousand digits is infinite instead of slow.
        document = json.loads(text, parse_int=float)
    except json.JSONDecodeError as error:
        raise RoutingError([Problem(file, error.lineno, "", f"is not JSON: {error.msg}")]) from None
    except RecursionError:
        raise RoutingError([Problem(file, None, "", "is nested too deeply, expected at most three lists")]) from None
    if not isinstance(document, dict):
        expected = "expected an object with logical_count or counts_by_domain"
        raise RoutingError([Problem(file, 1, "", f"found {_kind(document)}, {expected}")])
    return document


def _select(document: dict[str, Any], file: str, domain: str, problems: list[Problem]) -> tuple[str, Any]:
    """Where the wanted matrix stands, and the matrix."""
    by_domain = document.get("counts_by_domain")
    if by_domain is None:
        if "logical_count" not in document:
            message = f"found keys {escape(', '.join(document)) or 'none'}, expected logical_count or counts_by_domain"
            problems.append(Problem(file, None, "", message))
        elif domain:
            problems.append(Problem(file, None, "", f"has no domains, but {escape(domain)!r} was asked for"))
        return "logical_count", document.get("logical_count")
    if not isinstance(by_domain, dict) or not by_domain:
        problems.append(Problem(file, None, "counts_by_domain", f"found {_kind(by_domain)}, expected domains"))
    elif domain not in by_domain:
        found = f"no domain {escape(domain)!r}" if domain else "several domains, choose one as FILE#DOMAIN"
        problems.append(Problem(file, None, "counts_by_domain", f"{found}; {nearest(domain, by_domain)}"))
    else:
        return f"counts_by_domain.{domain}", by_domain[domain]
    return "counts_by_domain", None


def _stack(rows: Any, where: str, file: str, problems: list[Problem]) -> FloatArray | None:
    """[steps, layers, experts] from a matrix, which is one step, or from a list of matrices by step."""
    if not isinstance(rows, list) or not rows:
        problems.append(Problem(file, None, where, f"found {_kind(rows)}, expected a list of layers"))
        return None
    first = rows[0]
    if not (isinstance(first, list) and first and isinstance(first[0], list)):
        matrix = _matrix(rows, where, file, problems)
        return None if matrix is None else matrix[None]
    steps = []
    for step, layers in enumerate(rows):
        if len(problems) == MAX_PROBLEMS:
            break
        place = f"{where}[{step}]"
        if not isinstance(layers, list) or len(layers) != len(first):
            message = f"found {_kind(layers)}, expected a list of {len(first)} layers as in step 0"
            problems.append(Problem(file, None, place, message))
            continue
        counts = _matrix(layers, place, file, problems, width=len(first[0]))
        if counts is not None:
            steps.append(counts)
    return np.stack(steps) if len(steps) == len(rows) else None


def _matrix(
    rows: list[Any], where: str, file: str, problems: list[Problem], width: int | None = None
) -> FloatArray | None:
    if width is None:
        width = len(rows[0]) if isinstance(rows[0], list) else 0
    matrix = []
    for layer, row in enumerate(rows):
        if len(problems) == MAX_PROBLEMS:
            break
        fault = _fault(row, width)
        if fault:
            problems.append(Problem(file, None, f"{where}[{layer}]", fault))
        else:
            matrix.append(row)
    return np.array(matrix, dtype=np.float64) if len(matrix) == len(rows) else None


def _fault(row: Any, width: int) -> str:
    """What is wrong with one layer's *row*, or an empty text."""
    if not isinstance(row, list) or not row:
        return f"found {_kind(row)}, expected a list of counts, one per expert"
    if width and len(row) != width:
        return f"found {len(row)} counts, expected {width} as in the first layer"
    bad = [at for at, count in enumerate(row) if not (type(count) is float and 0 <= count <= MAX_COUNT)]
    if not bad:
        return ""
    more = f" (and {len(bad) - 1} more counts of this layer are wrong)" if len(bad) > 1 else ""
    return f"expert {bad[0]}: found {_kind(row[bad[0]])}, expected a count from 0 to {MAX_COUNT:g}{more}"


def _layer_numbers(
    document: dict[str, Any], where: str, layers: int, file: str, problems: list[Problem]
) -> tuple[int, ...]:
    numbers = document.get("layers_recorded")
    if numbers is None:
        return tuple(range(layers)) if where == "logical_count" else ()
    valid = isinstance(numbers, list) and all(
        type(n) is float and 0 <= n <= MAX_COUNT and n.is_integer() for n in numbers
    )
    if not valid or len(numbers) != layers:
        message = f"found {_kind(numbers)}, expected {layers} layer numbers, one per row of counts"
        problems.append(Problem(file, None, "layers_recorded", message))
        return ()
    return tuple(int(n) for n in numbers)


def _kind(value: object) -> str:
    """*value* as a message names it: numbers and texts as they are, containers by their size."""
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, dict):
        return f"an object with {len(value)} keys" if value else "an empty object"
    if isinstance(value, float):
        return f"{value:g}"
    return escape(json.dumps(value))
