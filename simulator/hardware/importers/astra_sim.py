"""ASTRA-sim's analytical network: one building block, count, bandwidth (GB/s) and latency (ns) per dimension."""

from __future__ import annotations

import re
from typing import Any, Literal

from simulator.documents.problem import escape, nearest
from simulator.documents.tree import Unreadable, read_tree
from simulator.hardware.importers import layers
from simulator.hardware.importers.dump import BadDump, bad
from simulator.hardware.topology import Dimension, Topology

FORMAT = "ASTRA-sim analytical YAML"
SHAPES: dict[str, Literal["switch", "mesh", "ring"]] = {"Switch": "switch", "FullyConnected": "mesh", "Ring": "ring"}

_KEYS = ("topology", "npus_count", "bandwidth", "latency")


def recognises(text: str) -> bool:
    """The key that counts NPUs."""
    return re.search(r"^npus_count\s*:", text, re.MULTILINE) is not None


def read(text: str) -> Topology:
    """The dimensions and the links that they stand for. Raise :exc:`.dump.BadDump`."""
    lists = _lists(yaml(text))
    problems = []
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) > 1:
        problems.append(
            "one entry per dimension is expected, found " + ", ".join(f"{n} of {k}" for k, n in lengths.items())
        )
    for key, low, high in (("npus_count", 1, 1_000_000), ("bandwidth", 1e-6, 1e6), ("latency", 0, 1e9)):
        for value in lists[key]:
            right = isinstance(value, int if key == "npus_count" else int | float) and not isinstance(value, bool)
            if not right or not low <= value <= high:
                problems.append(f"{key}: found {escape(repr(value))}, expected a number from {low:g} to {high:g}")
    wrong = [value for value in lists["topology"] if value not in SHAPES]
    problems += [f"topology: found {escape(repr(value))}; {nearest(str(value), SHAPES)}" for value in wrong]
    if problems:
        raise BadDump((None, problem) for problem in problems)
    dimensions = [
        Dimension(SHAPES[shape], size, shape, rate * 1e9, latency * 1e-9 or None)
        for shape, size, rate, latency in zip(*lists.values(), strict=True)
    ]
    return layers.build(FORMAT, dimensions, ["which accelerator it is", "what the links are"])


def yaml(text: str) -> dict[str, Any]:
    """The mapping that *text* is. Raise :exc:`.dump.BadDump` with the line of what is no YAML."""
    try:
        root, problems = read_tree(text, "")
    except Unreadable as error:
        raise bad(error.problem.message, error.problem.line) from None
    if problems:
        raise BadDump((problem.line, f"{problem.where}: {problem.message}") for problem in problems)
    value = root.plain()
    if not isinstance(value, dict):
        raise bad("expected a mapping")
    return value


def _lists(document: dict[str, Any]) -> dict[str, list[Any]]:
    problems = [f"missing key {key}" for key in _KEYS if key not in document]
    problems += [
        f"{key}: expected a list with one entry per dimension"
        for key in _KEYS
        if key in document and not (isinstance(document[key], list) and document[key])
    ]
    if problems:
        raise BadDump((None, problem) for problem in problems)
    return {key: document[key] for key in _KEYS}
