"""A node file from a topology: one host's accelerators, the links between them, its NICs and its memory.

What a dump cannot tell (what collectives attain, copies to the host, memory of the host) is taken over from a shipped
node with the same accelerator, whatever fields that has, as each figure's source says; its grade drops to scaled or
assumed, since it was another machine's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.hardware.collective import Timed
from simulator.hardware.figure import Figure, Record
from simulator.hardware.library import load_accelerator, load_node
from simulator.hardware.link_sheet import sheet_for
from simulator.hardware.profile import CannotProfileError, Entry, comment, written
from simulator.hardware.survey import Group, groups
from simulator.hardware.topology import ORDER, Device, Topology, ports
from simulator.shipped import shipped
from simulator.units import human_rate

_LOWER = {"measured": "scaled", "datasheet": "assumed", "scaled": "scaled", "assumed": "assumed"}
_UNITS = {
    "B/s": {
        *("bandwidth", "peer_bandwidth", "core_bandwidth", "h2d", "d2h", "both", "pageable_h2d", "pageable_d2h"),
        *("read", "write"),
    },
    "B": {"capacity"},
    "s": {"latency", "start", "step", "bulk"},
}
_NOT_TOLD = "not in the dump"
_PCIE_ALIKE = "pcie-rtx-pro-6000"
"""The shipped node whose collectives over PCIe alone are measured, with all 8 ranks."""
_PCIE_SHARE = 0.88
"""Of a PCIe link, attained by pinned copies: 55.4 of 63 GB/s on H200 (stas00/ml-engineering network/README.md)."""

Block = dict[str, Any]
"""Keys to entries, words and further blocks."""


@dataclass(slots=True)
class _Draft:
    topology: Topology
    dump: str
    like_id: str
    held: list[Device]
    """Accelerators and NICs of one host."""
    count: int
    """Accelerators as a cluster counts them: packages."""
    remarks: list[str] = field(default_factory=list)

    @property
    def imported(self) -> str:
        return f"imported from {self.dump}"

    @property
    def pcie_rates(self) -> list[float]:
        return [d.uplink_bytes_per_s for d in self.held if d.kind == "accelerator" and d.uplink_bytes_per_s]


def node_yaml(topology: Topology, accelerator: str, dump: str) -> str:
    """A node file of one host of *topology*, whose accelerators are *accelerator*.

    Raise :exc:`CannotProfileError` where hosts differ, or nothing stands in for what *dump* cannot tell, and
    :exc:`FileNotFoundError` for an accelerator that is not there.
    """
    part = load_accelerator(accelerator, Path()).id
    like_id = _like(part)
    held = _one_host(topology)
    inside = {device.id for device in held if device.kind == "accelerator"}
    group = groups(topology)[0]
    whole = bool(group.kind) and inside <= set(group.members)
    draft = _Draft(topology, dump, like_id, held, len(inside) // (group.dies if whole else 1))
    block = taken_over(load_node(like_id, Path()), like_id, draft.count, _NOT_TOLD)
    block |= {
        "name": f"{draft.count} x {part}, imported from {dump}",
        "accelerator": accelerator,
        "accelerators": draft.count,
    }
    block.pop("notes", None)
    if whole:
        _join(draft, block["scale_up"], group, part)
    else:
        block["scale_up"] = _pcie(draft, part)
    _nic(draft, block)
    _host(draft, block)
    return "\n".join([*comment(topology, dump, draft.remarks), *_lines(block)]) + "\n"


def taken_over(record: Record, like: str, count: int, why: str) -> Block:
    """The fields of *record* of the shipped node *like*, each figure as one of another machine; timings by name.

    *count* accelerators bound the groups that few-rank figures are of; *why* says why another's figure stands in.
    """
    block: Block = {}
    for name, value in record:
        if isinstance(value, Figure):
            block[name] = _entry(value, name, like, why=why)
        elif isinstance(value, Record):
            block[name] = taken_over(value, like, count, why)
        elif isinstance(value, Mapping):
            inner = {
                key: taken_over(one, like, count, why)
                if not isinstance(one, Figure)
                else _entry(one, "", like, why=why)
                for key, one in value.items()
                if (name != "few_ranks" or key < count) and not isinstance(one, Timed)
            }
            block |= {name: inner} if inner else {}
        elif value is not None:
            block[name] = value
    return block


def _entry(figure: Figure[Any], name: str, like: str, factor: float = 1.0, why: str = _NOT_TOLD) -> Entry:
    unit = next((unit for unit, names in _UNITS.items() if name in names), "")
    source = f"{why}; as {like}: {figure.source}"
    value = figure.value if factor == 1.0 else figure.value * factor
    return Entry(written(value, unit), source, _LOWER[figure.grade])


def _lines(block: Block, indent: str = "") -> list[str]:
    lines = []
    for key, value in block.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {value if isinstance(value, Entry) else json.dumps(value)}")
    return lines


def carriers() -> dict[str, list[str]]:
    """The shipped nodes of each accelerator that one carries."""
    carried: dict[str, list[str]] = {}
    for path in sorted(shipped("hardware_profiles", "nodes").glob("*.yaml")):
        # Reading the one line is enough, and twenty times as fast as checking every node.
        found = re.search(r"""^accelerator:\s*["']?([\w.-]+)""", path.read_text(), re.MULTILINE)
        if found:
            carried.setdefault(found[1], []).append(path.stem)
    return carried


def _like(accelerator: str) -> str:
    carried = carriers()
    if accelerator not in carried:
        raise CannotProfileError(
            f"no shipped node carries {accelerator}, so nothing stands in for what a dump cannot tell (collectives, "
            f"copies to the host, host memory); there are nodes with {', '.join(sorted(carried))}"
        )
    return carried[accelerator][0]


def _one_host(topology: Topology) -> list[Device]:
    """The accelerators and NICs of a host, where all hosts hold as many."""
    if topology.dimensions and topology.dimensions[0].kind != "cable":
        return list(topology.of("accelerator")[: topology.dimensions[0].size])
    hosts = {name: held for name, held in topology.hosts().items() if any(d.kind == "accelerator" for d in held)}
    if not hosts or topology.dimensions:
        raise CannotProfileError("the dump names no accelerators, so it tells of a fabric and of no node")
    counts = {name: sum(device.kind == "accelerator" for device in held) for name, held in hosts.items()}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name}: {count}" for name, count in list(counts.items())[:8])
        raise CannotProfileError(f"the hosts hold different numbers of accelerators ({found}), a node file holds one")
    return next(iter(hosts.values()))


def _join(draft: _Draft, block: Block, group: Group, accelerator: str) -> None:
    """Put links of one kind that join the whole host into *block*, which is scale_up."""
    domain = len(group.members) // group.dies
    sheet = sheet_for(accelerator, group.kind)
    rate = group.bandwidth_bytes_per_s
    if rate is None:
        has = "links are not counted" if sheet else f"{accelerator} has no {group.kind} in hardware_profiles/links"
        raise CannotProfileError(f"the rate of {group.kind} is not in the dump, and {has}: which accelerator is it?")
    words = f"{draft.imported}: {_links_words(group)}"
    words += f" ({sheet.name}: {sheet.rate.source})" if sheet else ""
    grade = sheet.rate.grade if sheet else "assumed"
    held = sheet.accelerators[accelerator] if sheet else 0
    if group.links and group.links < held:
        draft.remarks.append(f"{group.links} of the {held} {group.kind} links that {accelerator} has are in use")
    if group.shape == "partial mesh":
        draft.remarks.append("pairs without a link use the others' evenly: taken as a full mesh of thinner links")
    beyond = domain > draft.count and domain % draft.count == 0
    block["kind"] = "switch" if group.shape == "switch" else "mesh"
    block["domain"] = domain if beyond else draft.count
    block["bandwidth"] = Entry(human_rate(rate), words, grade)
    block["peer_bandwidth"] = Entry(human_rate(group.peer_bandwidth_bytes_per_s or rate), words, grade)
    if group.latency_s:
        block["latency"] = Entry(written(group.latency_s, "s"), draft.imported, "assumed")
    if beyond:
        block["beyond_node"] = {"bandwidth": block["bandwidth"], "latency": block["latency"]}
    else:
        block.pop("beyond_node", None)


def _links_words(group: Group) -> str:
    if group.links is None:
        return f"{group.kind}, {group.shape}"
    each = human_rate(group.bandwidth_bytes_per_s / group.links) if group.bandwidth_bytes_per_s else "?"
    return f"{group.kind}, {group.links} links x {each}, {group.shape}"


def _pcie(draft: _Draft, accelerator: str) -> Block:
    """The block scale_up where no fast links join the whole host: every pair at the rate of PCIe."""
    fast = [group for group in groups(draft.topology) if len(group.members) > 1]
    if fast:
        sizes = ", ".join(f"{len(group.members)} by {group.kind}" for group in fast)
        draft.remarks.append(f"groups of {sizes} are joined, the host as a whole by PCIe: every pair is priced as PCIe")
    sheet = sheet_for(accelerator, "pcie")
    if draft.pcie_rates:
        entry = Entry(human_rate(min(draft.pcie_rates)), f"{draft.imported}: PCIe link of an accelerator", "datasheet")
    elif sheet is not None:
        rate = sheet.rate.value * sheet.accelerators[accelerator]
        entry = Entry(human_rate(rate), f"not in the dump; {sheet.name}: {sheet.rate.source}", "assumed")
    else:
        has = f"{accelerator} has no pcie in hardware_profiles/links"
        raise CannotProfileError(f"the rate of PCIe is not in the dump, and {has}")
    block = taken_over(load_node(_PCIE_ALIKE, Path()).scale_up, _PCIE_ALIKE, draft.count, _NOT_TOLD)
    return block | {"domain": draft.count, "bandwidth": entry, "peer_bandwidth": entry}


def _nic(draft: _Draft, node: Block) -> None:
    """Put the NICs that go with accelerators into *node*; leave it without where the dump lists none."""
    like = load_node(draft.like_id, Path()).nic
    block = node.pop("nic", None)
    if like is None or block is None:
        draft.remarks.append(f"what NICs attain is not told, and {draft.like_id} has none: no block nic")
        return
    if draft.topology.dimensions[1:]:
        node["nic"] = block | _ports_of_dimension(draft)
        return
    mine = {device.id for device in draft.held}
    found = [port for port in ports(draft.topology) if port.nic.id in mine]
    if not found:
        draft.remarks.append("no NIC is in the dump, so the node has no port; jobs on several nodes need the block nic")
        return
    best = min((port.by for port in found if port.by), key=ORDER.index, default="SYS")
    near = [port.nic for port in found if port.by == best or (best in ORDER[:2] and port.by in ORDER[:2])]
    rates = [nic.port_bytes_per_s for nic in near if nic.port_bytes_per_s]
    counted = (
        f"{draft.imported}: {len(near)} of {len(found)} NICs, the nearest ({best}), for {draft.count} accelerators"
    )
    if len(rates) == len(near):
        block["bandwidth"] = Entry(human_rate(sum(rates) / draft.count), counted, "datasheet")
    else:
        factor, why = min(1.0, len(near) / draft.count), f"{counted}; rate of a port not told"
        block["bandwidth"] = _entry(like.bandwidth, "bandwidth", draft.like_id, factor, why)
    node["nic"] = block


def _ports_of_dimension(draft: _Draft) -> Block:
    layer, where = draft.topology.dimensions[1], f"{draft.imported}: dimension 2"
    told: Block = {}
    if layer.bandwidth_bytes_per_s:
        told["bandwidth"] = Entry(human_rate(layer.bandwidth_bytes_per_s), where, "assumed")
    if layer.latency_s:
        told["latency"] = Entry(written(layer.latency_s, "s"), where, "assumed")
    return told


def _host(draft: _Draft, node: Block) -> None:
    """Put narrower PCIe links, memory and drives of the dump into *node*."""
    like = load_node(draft.like_id, Path())
    narrow = min(draft.pcie_rates) * _PCIE_SHARE if draft.pcie_rates else None
    for name, figure in (("h2d", like.host_link.h2d), ("d2h", like.host_link.d2h)):
        if narrow is not None and narrow < 0.98 * figure.value:
            words = f"{draft.imported}: PCIe link of an accelerator, {_PCIE_SHARE:.0%} of it attained"
            node["host_link"][name] = Entry(human_rate(narrow), words, "scaled")
    memory = [device.capacity_bytes for device in draft.topology.of("numa") if device.capacity_bytes]
    if memory:
        words = f"{draft.imported}: memory of {len(memory)} NUMA nodes"
        node["ddr"]["capacity"] = Entry(written(sum(memory), "B"), words, "measured")
    drives = [device.capacity_bytes for device in draft.topology.of("drive") if device.capacity_bytes]
    if drives and like.nvme is not None:
        words = f"{draft.imported}: {len(drives)} drives"
        node["nvme"]["drives"] = Entry(len(drives), words, "measured")
        node["nvme"]["capacity"] = Entry(written(sum(drives), "B"), words, "measured")
        factor, why = len(drives) / like.nvme.drives.value, f"{words}, rates in proportion"
        for name, figure in (("read", like.nvme.read), ("write", like.nvme.write)):
            node["nvme"][name] = _entry(figure, name, draft.like_id, factor, why)
