"""`rocm-smi --showtopo`: blocks of matrices, of which the one of link types is read, and the list of NUMA nodes.

Where the tool could not read a pair it prints XXXX; such pairs stay unknown.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from simulator.hardware.importers.dump import bad, whole
from simulator.hardware.importers.matrix import header_of, read_matrix
from simulator.hardware.importers.matrix_graph import build
from simulator.hardware.topology import Topology

FORMAT = "rocm-smi --showtopo"

_TYPES = re.compile(r"\b(?:XGMI|PCIE|XXXX)\b")
_NUMA = re.compile(r"GPU\[([0-9]{1,6})\]\s*: \(Topology\) Numa Node: ([0-9]{1,6})\s*")


def recognises(text: str) -> bool:
    """The words around its blocks, or a matrix of GPUs whose labels only it uses."""
    if "ROCm System Management" in text or "Link Type between two GPUs" in text:
        return True
    header = header_of(text)
    return header is not None and header[1][0].startswith("GPU") and _block(text) is not None


def read(text: str) -> Topology:
    """The host that the blocks show. Raise :exc:`.dump.BadDump`."""
    block = _block(text)
    if block is None:
        raise bad("has no matrix of link types (XGMI, PCIE); weights and hops alone do not tell what a link is")
    first, lines = block
    matrix = read_matrix("\n" * (first - 1) + "\n".join(lines))
    numa = {}
    for number, line in enumerate(text.split("\n"), 1):
        found = _NUMA.fullmatch(line.strip())
        if found and f"GPU{found[1]}" in matrix.names:
            numa[f"GPU{found[1]}"] = whole(found[2], "NUMA node", number, most=10_000)
    untold = ["which GPU it is, and so the rate of a link", "how many links run between two GPUs"]
    failures = sum("ERROR" in line or "Not supported" in line for line in text.split("\n"))
    if failures:
        untold.append(f"what {failures} messages of failure say that the tool could not read")
    return build(FORMAT, replace(matrix, numa=numa), untold)


def _block(text: str) -> tuple[int, list[str]] | None:
    """The first line and the lines of the matrix that has types of links in it."""
    lines = text.split("\n")
    heads = [i for i, line in enumerate(lines) if header_of(line)]
    for at, end in pairwise([*heads, len(lines)]):
        if any(_TYPES.search(line) and line.startswith("GPU") for line in lines[at + 1 : end]):
            return at + 1, lines[at:end]
    return None
