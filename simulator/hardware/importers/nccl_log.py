"""NCCL's own view of a node in its log (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=GRAPH): "node (hops/GB/s/path)" by GPU.

The rates are constants of NCCL's model, not measurements, and the log is kept as such: they are graded as assumed.
"""

from __future__ import annotations

import re

from simulator.hardware.importers.dump import bad
from simulator.hardware.importers.matrix import Matrix
from simulator.hardware.importers.matrix_graph import build
from simulator.hardware.topology import Device, Link, Topology

FORMAT = "NCCL log of graph paths"

_ROW = re.compile(r"\b(GPU|NET|CPU|NVS)/([0-9A-Fa-f-]{1,24}) ?:")
_CELL = re.compile(
    r"\b(GPU|NET|CPU|NVS)/([0-9A-Fa-f-]{1,24}) \(([0-9]{1,2})/([0-9]{1,5}(?:\.[0-9]{1,4})?)/([A-Z0-9]{2,4})\)"
)
_SAME_NODE = {"PHB": "PHB", "PIX": "PIX", "PXB": "PXB", "PXN": "PXB", "P2C": "PHB", "SYS": "SYS"}


def recognises(text: str) -> bool:
    """At least one cell such as GPU/0-4e000 (5/10.0/SYS)."""
    return _CELL.search(text) is not None and "NCCL" in text


def read(text: str) -> Topology:
    """The host that the paths show. Raise :exc:`.dump.BadDump`."""
    cells: dict[tuple[str, str], str] = {}
    rates: dict[tuple[str, str], float] = {}
    names: list[str] = []
    switched = False
    for line in text.split("\n"):
        head = _ROW.search(line)
        if not head or head[1] not in {"GPU", "NET"}:
            continue
        row = _name(head[1], head[2])
        names += [row] * (row not in names)
        for kind, bus, _, rate, label in _CELL.findall(line, head.end() - 1):
            switched |= kind == "NVS"
            other = _name(kind, bus)
            if kind in {"GPU", "NET"} and other != row:
                names += [other] * (other not in names)
                cells[row, other] = cells[other, row] = "NV1" if label == "NVL" else _SAME_NODE.get(label, "")
                rates[row, other] = rates[other, row] = float(rate) * 1e9
    if not cells:
        raise bad("has no row of paths between GPUs")
    return _with_rates(names, cells, rates, switched)


def _name(kind: str, bus: str) -> str:
    short = bus.lower().rpartition("-")[2]
    return f"{'GPU' if kind == 'GPU' else 'NIC'} {short}"


def _with_rates(
    names: list[str], cells: dict[tuple[str, str], str], rates: dict[tuple[str, str], float], switched: bool
) -> Topology:
    pairs = [(one, other) for i, one in enumerate(names) for other in names[i + 1 :]]
    missing = sum(not cells.get(pair) for pair in pairs)
    unknown = [f"the path between {missing} pairs of devices: no row tells"] if missing else []
    assumed = ["rates are constants of NCCL's model of the node, not measurements"]
    known = {pair: label for pair, label in cells.items() if label}
    base = build(FORMAT, Matrix(tuple(names), known, {}, tuple(assumed), tuple(unknown)))
    links = []
    for link in base.links:
        rate = rates.get((link.one, link.other))
        links.append(Link(link.one, link.other, link.kind, None, rate) if rate else link)
    devices = list(base.devices)
    if switched:
        ends = dict.fromkeys(name for link in links if link.kind == "nvlink" for name in (link.one, link.other))
        best = {name: max(rates[pair] for pair in rates if pair[0] == name) for name in ends}
        devices.append(Device("nvswitch", "switch", "NVSwitch"))
        links = [link for link in links if link.kind != "nvlink"]
        links += [Link(name, "nvswitch", "nvlink", None, rate) for name, rate in best.items()]
    return Topology(FORMAT, tuple(devices), tuple(links), (), base.unknown, base.assumed)
