"""Recorded requests: CSV as the Azure LLM inference traces have it, or JSONL as Mooncake's.

Azure (Patel et al., "Splitwise", ISCA 2024): TIMESTAMP, ContextTokens, GeneratedTokens. Mooncake (Qin et al., FAST
2025): timestamp in ms, input_length, output_length, and hash_ids, one for each 512 tokens of the prompt, alike in two
prompts as far as these begin alike. The first request comes at zero.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from simulator.documents import InvalidDocument, Problem
from simulator.documents.content import read_bytes
from simulator.documents.tree import Unreadable
from simulator.shipped import locate

Row = tuple[int, int, int, int, tuple[int, ...]]
"""Arrival in ns, tokens of the prompt, of the answer, cached ones, hashes."""
MOST_BYTES = 500_000_000
HASH_TOKENS = 512
"""Tokens of a prompt that one of Mooncake's hash_ids stands for."""
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOST_PROBLEMS = 20


def read_requests(name: str, folder: Path) -> list[Row]:
    """The requests of the trace *name*, a path or a shipped one, in order of arrival.

    Raise :exc:`InvalidDocument` with what is wrong in its first bad lines.
    """
    path = _find(name, folder)
    try:
        text = read_bytes(path, MOST_BYTES, "a trace of requests").decode("utf-8", errors="replace")
    except Unreadable as error:
        raise InvalidDocument([error.problem]) from None
    rows = list(_good(path, _azure(text) if path.suffix == ".csv" else _mooncake(text)))
    if not rows:
        raise InvalidDocument([Problem(str(path), None, "", "holds no requests")])
    first = min(row[0] for row in rows)
    return sorted((row[0] - first, *row[1:]) for row in rows)


def _find(name: str, folder: Path) -> Path:
    try:
        return locate(
            name, kind="trace", folder=folder, shipped_in=("scenarios", "requests"), suffixes=(".csv", ".jsonl")
        )
    except FileNotFoundError as error:
        raise InvalidDocument([Problem("", None, "serving.requests.trace", str(error))]) from None


def _good(path: Path, found: Iterable[tuple[int, Row | str]]) -> Iterator[Row]:
    problems: list[Problem] = []
    for line, row in found:
        if isinstance(row, str):
            problems.append(Problem(str(path), line, "", row))
            if len(problems) == _MOST_PROBLEMS:
                break
        else:
            yield row
    if problems:
        raise InvalidDocument(problems)


def _azure(text: str) -> Iterator[tuple[int, Row | str]]:
    reader = csv.DictReader(io.StringIO(text))
    try:
        missing = [name for name in _AZURE if name not in (reader.fieldnames or ())]
    except csv.Error as error:
        yield 1, f"is no header: {error}"
        return
    if missing:
        yield 1, f"has no column {', '.join(missing)}; expected {', '.join(_AZURE)}"
        return
    try:
        for row in reader:
            yield reader.line_num, _azure_row(row)
    except csv.Error as error:
        yield reader.line_num + 1, f"is no request: {error}"


def _azure_row(row: Mapping[str, str]) -> Row | str:
    """Times without a zone are UTC, wherever the trace is read."""
    try:
        at = datetime.fromisoformat(row["TIMESTAMP"])
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return _row(at.timestamp() * 1e9, row["ContextTokens"], row["GeneratedTokens"], ())
    except (ValueError, TypeError, OverflowError) as error:
        return f"is no request: {error}"


def _mooncake(text: str) -> Iterator[tuple[int, Row | str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            hashes = tuple(int(each) for each in row.get("hash_ids", ()))
            yield number, _row(float(row["timestamp"]) * 1e6, row["input_length"], row["output_length"], hashes)
        except KeyError as error:
            yield number, f"has no {error}; expected timestamp, input_length, output_length"
        except RecursionError:
            yield number, "is no request: nested too deeply"
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            yield number, f"is no request: {error}"


def _row(at_ns: float, prompt: Any, output: Any, hashes: tuple[int, ...]) -> Row:
    """Empty prompts and answers, which traces have a few of, count as one token."""
    lengths = int(prompt), int(output)
    if min(lengths) < 0:
        raise ValueError(f"found {min(lengths)} tokens")
    return round(at_ns), max(1, lengths[0]), max(1, lengths[1]), 0, hashes
