"""The square matrix of labels that the vendors' `topo` commands print, as text to cells.

Rows and columns are the same devices. Runs of blanks and tabs both separate; the header may lack its leading blank
column; tails hold CPU and NUMA affinity, of which columns may be missing. A row that is cut off or absent is filled
from its mirror image, and what has none stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from simulator.documents.problem import escape
from simulator.hardware.importers.dump import BadDump, bad

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Labels of PCIe paths, nearest first."""
_ALIKE = {"SOC": "SYS", "PIB": "PIX", "MPB": "PXB", "SPB": "PIX"}
"""Older or other vendors' words (Moore Threads: single and multiple PCIe bridge) for those paths."""
_SELF = {"X", "0", "*", "-"}
_UNKNOWN = {"?", "N/A", "XXXX", "UNKNOWN"}
_FABRIC = r"NV[0-9]{1,3}|XGMI|HCCS_SW|HCCS|SIO|XL|PCIE"
_LABEL = re.compile(rf"{_FABRIC}|{'|'.join((*PATHS, *_ALIKE))}")
_GLUED = re.compile(rf"(?:{_LABEL.pattern})+")
_TAIL = re.compile(r"CPU\s+Affinity|NUMA\s+Affinity|GPU\s+NUMA\s+ID|NPU\s+NUMA\s+ID")
_DEVICE = re.compile(r"(?:GPU|NPU|XPU|NIC|mlx[45]_|mlx5_bond_|bnxt_re|irdma|hns_|rdma|roce|ib|eth)[0-9]+(?:_[0-9]+)?")
MOST_DEVICES = 512


@dataclass(frozen=True, slots=True)
class Matrix:
    """Cells by pair of device names, both ways; pairs that nothing tells about are absent."""

    names: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    numa: Mapping[str, int]
    """By device, where a row gives one NUMA node."""
    assumed: tuple[str, ...]
    unknown: tuple[str, ...]
    legend: Mapping[str, str] = field(default_factory=dict)
    """Interface by NIC, from the NIC legend."""


def header_of(text: str) -> tuple[int, tuple[str, ...], tuple[str, ...]] | None:
    """The line of the header, the devices and the names of the tail columns; None where there is no header.

    The first row of a matrix starts with a device too, so a header is a line of devices and nothing else.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > 20_000:
            continue
        tail = [" ".join(found.split()) for found in _TAIL.findall(line)]
        words = _TAIL.sub(" ", line).split()
        if words and all(_DEVICE.fullmatch(word) for word in words) and (len(words) > 1 or tail):
            return number, tuple(words), tuple(tail)
    return None


def read_matrix(text: str) -> Matrix:
    """The matrix of *text*, completed by symmetry. Raise :exc:`BadDump` where it contradicts itself."""
    header = header_of(text)
    if header is None:
        raise bad("has no header line with the devices (GPU0 GPU1 ...)")
    start, names, tails = header
    if len(names) > MOST_DEVICES or len(set(names)) < len(names):
        twice = next((name for name in names if names.count(name) > 1), None)
        raise bad(f"header names {twice} twice" if twice else f"header names more than {MOST_DEVICES} devices", start)
    rows = dict(_rows(text, start, names))
    if not rows:
        raise bad(f"ends after the header of {len(names)} devices: no row of the matrix is left", start)
    read = {name: _cells(line, words, names, name) for name, (line, words) in rows.items()}
    cells, assumed, unknown = _complete(names, {name: row[0] for name, row in read.items()}, rows)
    glued = sum(row[2] for row in read.values())
    if glued:
        assumed.append(f"{glued} labels that were glued to their neighbour were split")
    numa = {name: value for name, row in read.items() if (value := _numa(row[1], tails)) is not None}
    if not numa and (numa := _by_processors(read, tails)):
        assumed.append(f"{len(set(numa.values()))} NUMA nodes were told apart by CPU affinity")
    return Matrix(names, cells, numa, tuple(assumed), tuple(unknown), dict(_legend(text)))


def _rows(text: str, start: int, names: tuple[str, ...]) -> Iterator[tuple[str, tuple[int, list[str]]]]:
    seen: set[str] = set()
    for number, line in enumerate(text.split("\n")[start:], start + 1):
        words = line.split()
        if not words or words[0] not in names:
            if seen and words and not line[0].isspace() and words[0].endswith(":"):
                return
            continue
        if words[0] in seen:
            raise bad(f"row {words[0]} is there twice", number)
        if len(words) > 1:
            seen.add(words[0])
            yield words[0], (number, words[1:])


def _cells(line: int, words: list[str], names: tuple[str, ...], name: str) -> tuple[list[str | None], list[str], int]:
    """The labels of a row in order (None: not told), the words of its tail, and how many labels were glued."""
    found: list[str | None] = []
    glued = 0
    for index, word in enumerate(words):
        if len(found) >= len(names):
            return found, words[index:], glued
        upper = word.upper()
        if upper in _SELF and len(found) == names.index(name):
            found.append("X")
        elif upper in _UNKNOWN:
            found.append(None)
        elif _GLUED.fullmatch(upper):
            labels = _LABEL.findall(upper)
            glued += len(labels) - 1
            found += [_ALIKE.get(label, label) for label in labels]
        elif re.fullmatch(r"[0-9,-]+", word):
            # The affinity of a row whose last labels are missing.
            return found, words[index:], glued
        else:
            known = ", ".join((*PATHS, "NV#", "XGMI", "HCCS", "HCCS_SW", "SIO", "XL"))
            raise bad(f"row {name}, column {names[len(found)]}: unknown label {escape(word)!r}; known: {known}", line)
    return found[: len(names)], [], glued


def _complete(
    names: tuple[str, ...], rows: Mapping[str, list[str | None]], lines: Mapping[str, tuple[int, list[str]]]
) -> tuple[dict[tuple[str, str], str], list[str], list[str]]:
    problems: list[tuple[int | None, str]] = []
    cells: dict[tuple[str, str], str] = {}
    for name, row in rows.items():
        own = names.index(name)
        if len(row) > own and row[own] != "X":
            problems.append((lines[name][0], f"row {name} has {row[own] or '?'} in its own column, expected X"))
        cells |= {(name, other): label for other, label in zip(names, row, strict=False) if label and other != name}
    filled = missing = 0
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            there, back = cells.get((one, other)), cells.get((other, one))
            if there and back and there != back:
                where = lines[other][0]
                problems.append((where, f"{one} to {other} is {there}, but {other} to {one} is {back}"))
            elif there is None and back is None:
                missing += 1
            elif there is None or back is None:
                filled += 1
                cells[one, other] = cells[other, one] = there or back or ""
    if problems:
        raise BadDump(problems)
    assumed, unknown = [], []
    absent = [name for name in names if name not in rows]
    if filled:
        why = f" (rows not in the dump: {', '.join(absent)})" if absent else ""
        assumed.append(f"{filled} cells of the matrix were filled from their mirror image{why}")
    if missing:
        unknown.append(f"the path between {missing} pairs of devices: neither cell is in the dump")
    return cells, assumed, unknown


def _numa(tail: list[str], tails: tuple[str, ...]) -> int | None:
    """The NUMA node of a row: the affinity column, where it is one number."""
    if "NUMA Affinity" not in tails:
        return None
    at = tails.index("NUMA Affinity")
    if at >= len(tail):
        return None
    # A list such as 0,3-9 names the processors' node first and memory of other devices after it.
    first = re.match(r"[0-9]{1,4}", tail[at])
    return int(first[0]) if first else None


def _by_processors(
    rows: Mapping[str, tuple[list[str | None], list[str], int]], tails: tuple[str, ...]
) -> dict[str, int]:
    """NUMA nodes counted in order of the first processor in the affinity column."""
    if "CPU Affinity" not in tails:
        return {}
    first = {
        name: int(found[0])
        for name, (_, tail, _) in rows.items()
        if tail and (found := re.match(r"[0-9]{1,6}", tail[0]))
    }
    order = sorted(set(first.values()))
    return {name: order.index(processor) for name, processor in first.items()}


def _legend(text: str) -> Iterator[tuple[str, str]]:
    for line in text.split("\n"):
        found = re.fullmatch(r"\s*(NIC[0-9]{1,4}): *([\w.:-]{1,40})\s*", line)
        if found:
            yield found[1], found[2]
