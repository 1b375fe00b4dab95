"""From a matrix of labels to devices: the PCIe tree that the labels imply, and the scale-up links beside it.

PIX puts two devices under one PCIe switch, PXB under switches of one bridge, PHB under one host bridge, NODE into one
NUMA node; SYS is across. A label of a scale-up link hides the PCIe path of its pair.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from simulator.hardware.importers.matrix import PATHS, Matrix
from simulator.hardware.topology import Device, DeviceKind, Link, Topology, components

MOST_NVLINKS = 18
"""No GPU with NVLink has had more links (Hopper and Blackwell; 12 on A100, 6 on V100): a matrix whose rows add up to
more shows paths through an NVSwitch, not cables."""
_FABRICS = {"XGMI": "xgmi", "HCCS": "hccs", "HCCS_SW": "unified bus", "SIO": "die", "XL": "xpulink"}
_LAYERS: tuple[tuple[str, DeviceKind], ...] = (
    ("PIX", "pcie switch"),
    ("PXB", "pcie switch"),
    ("PHB", "host bridge"),
    ("NODE", "numa"),
)


def build(format_: str, matrix: Matrix, unknown: Iterable[str] = ()) -> Topology:
    """The topology of one host that *matrix* shows; *unknown* adds what the format never tells."""
    nics = [name for name in matrix.names if not re.match("GPU|NPU|XPU", name)]
    accelerators = [name for name in matrix.names if name not in nics]
    holders, parents, notes = _tree(matrix)
    switches, links, assumed = _scale_up(matrix, accelerators)
    devices = [Device("host", "host"), *holders]
    devices += [Device(name, "accelerator", parent=parents[name]) for name in accelerators]
    devices += [Device(name, "nic", matrix.legend.get(name, name), parents[name]) for name in nics]
    numa = [device.id for device in holders if device.kind == "numa"]
    links += [Link(one, other, "socket", None) for i, one in enumerate(numa) for other in numa[i + 1 :]]
    untold = [*unknown, *matrix.unknown]
    unplaced = [name for name in matrix.names if parents[name] == "host"]
    if unplaced:
        untold.append(f"the NUMA node of {_listed(unplaced)}")
    if not nics:
        untold.append("NICs: the dump lists none")
    return Topology(
        format_, (*devices, *switches), tuple(links), (), tuple(untold), (*matrix.assumed, *notes, *assumed)
    )


def _tree(matrix: Matrix) -> tuple[list[Device], dict[str, str], list[str]]:
    """Switches, bridges and NUMA nodes; what holds each device; notes."""
    levels: list[list[list[str]]] = []
    for layer, (label, _) in enumerate(_LAYERS):
        near = PATHS[: layer + 1]
        pairs = [pair for pair, cell in matrix.cells.items() if cell in near]
        if label == "NODE":
            pairs += _same_numa(matrix)
        levels.append(components(matrix.names, pairs))
    devices: list[Device] = []
    holder = dict.fromkeys(matrix.names, "")
    top = dict.fromkeys(matrix.names, "")
    for (label, kind), groups in reversed(list(zip(_LAYERS, levels, strict=True))):
        for group in groups:
            whole_numa = kind == "numa" and (any(name in matrix.numa for name in group) or len(group) > 1)
            inner = kind != "numa" and len(group) > 1 and _adds(group, label, matrix)
            if whole_numa or inner:
                made = f"{kind.replace(' ', '-')}{sum(device.kind == kind for device in devices)}"
                node = next((matrix.numa[name] for name in group if name in matrix.numa), None)
                name = f"NUMA node {node}" if kind == "numa" and node is not None else ""
                devices.append(Device(made, kind, name, holder[group[0]] or "host"))
                holder |= dict.fromkeys(group, made)
                top |= dict.fromkeys(group, made) if kind == "numa" else {}
    across = sum(
        top[one] == top[other] != "" and cell == "SYS" and one < other for (one, other), cell in matrix.cells.items()
    )
    notes = [f"{across} pairs share a NUMA node although their label is SYS: taken as one node"] if across else []
    return devices, {name: holder[name] or "host" for name in matrix.names}, notes


def _adds(group: list[str], label: str, matrix: Matrix) -> bool:
    """Whether the layer of *label* is seen inside *group*; otherwise the group is that of the layer below."""
    members = set(group)
    return any(cell == label and one in members and other in members for (one, other), cell in matrix.cells.items())


def _same_numa(matrix: Matrix) -> list[tuple[str, str]]:
    first: dict[int, str] = {}
    return [(name, first.setdefault(node, name)) for name, node in matrix.numa.items()]


def _scale_up(matrix: Matrix, accelerators: list[str]) -> tuple[list[Device], list[Link], list[str]]:
    cabled: dict[tuple[str, str], tuple[str, int | None]] = {}
    for i, one in enumerate(accelerators):
        for other in accelerators[i + 1 :]:
            kind_count = _fabric(matrix.cells.get((one, other), ""))
            if kind_count:
                cabled[one, other] = kind_count
    switches: list[Device] = []
    links: list[Link] = []
    notes: list[str] = []
    for kind in dict.fromkeys(kind for kind, _ in cabled.values()):
        pairs = {pair: count for pair, (found, count) in cabled.items() if found == kind}
        for group in components(accelerators, pairs):
            inside = {pair: count for pair, count in pairs.items() if pair[0] in group}
            if inside and _switched(kind, inside):
                switches.append(
                    Device(f"{kind.replace(' ', '-')}-switch{len(switches)}", "switch", "NVSwitch" * (kind == "nvlink"))
                )
                links += [Link(one, switches[-1].id, kind, _links_of(one, inside)) for one in group]
                notes.append(_why_switched(kind, group, inside))
            else:
                links += [Link(*pair, kind, count) for pair, count in inside.items()]
    return switches, links, notes


def _fabric(label: str) -> tuple[str, int | None] | None:
    nvlink = re.fullmatch("NV([0-9]{1,3})", label)
    if nvlink:
        return ("nvlink", int(nvlink[1])) if int(nvlink[1]) else None
    return (_FABRICS[label], None if label in {"HCCS_SW", "XL"} else 1) if label in _FABRICS else None


def _switched(kind: str, pairs: dict[tuple[str, str], int | None]) -> bool:
    if kind == "unified bus":
        return True
    ends = {name for pair in pairs for name in pair}
    return kind == "nvlink" and any(
        sum(count or 0 for pair, count in pairs.items() if name in pair) > MOST_NVLINKS for name in ends
    )


def _links_of(name: str, pairs: dict[tuple[str, str], int | None]) -> int | None:
    """Through a switch each pair shows all links of its narrower end; the most seen are those that *name* has."""
    counts = [count for pair, count in pairs.items() if name in pair and count]
    return max(counts, default=None)


def _why_switched(kind: str, group: list[str], pairs: dict[tuple[str, str], int | None]) -> str:
    if kind == "unified bus":
        return f"{_listed(group)} reach each other through a switch (HCCS_SW)"
    seen = sum(count or 0 for pair, count in pairs.items() if group[0] in pair)
    return (
        f"{_listed(group)} sit behind an NVSwitch: {group[0]} shows {seen} links to its peers and no GPU has more than "
        f"{MOST_NVLINKS}"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]} ({len(names)})"
