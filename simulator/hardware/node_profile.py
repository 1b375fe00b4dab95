"""A node file from a topology: one host's accelerators, the links between them, its NICs and its memory.

What a dump cannot tell (what collectives attain, copies to the host, memory of the host) is taken over from a shipped
node with the same accelerator, as the figure's source says; its grade drops to scaled or assumed, since it was another
machine's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.hardware.figure import Figure
from simulator.hardware.library import load_accelerator, load_node
from simulator.hardware.link_sheet import sheet_for
from simulator.hardware.node import Node
from simulator.hardware.profile import CannotProfileError, Entry, comment, written
from simulator.hardware.survey import Group, groups
from simulator.hardware.topology import ORDER, Device, Topology, ports
from simulator.shipped import shipped
from simulator.units import human_rate

_LOWER = {"measured": "scaled", "datasheet": "assumed", "scaled": "scaled", "assumed": "assumed"}
_PCIE_ALIKE = "pcie-rtx-pro-6000"
"""The shipped node whose collectives over PCIe alone are measured, with all 8 ranks."""
_PCIE_SHARE = 0.88
"""Of a PCIe link, attained by pinned copies: 55.4 of 63 GB/s on H200 (stas00/ml-engineering network/README.md)."""


@dataclass(slots=True)
class _Draft:
    topology: Topology
    dump: str
    like: Node
    like_id: str
    held: list[Device]
    """Accelerators and NICs of one host."""
    remarks: list[str] = field(default_factory=list)

    @property
    def imported(self) -> str:
        return f"imported from {self.dump}"

    def taken(self, figure: Figure[Any], unit: str, factor: float = 1.0, like: str = "", why: str = "") -> Entry:
        """*figure* of the node that stands in, times *factor*."""
        source = f"{why or 'not in the dump'}; as {like or self.like_id}: {figure.source}"
        return Entry(written(figure.value * factor, unit), source, _LOWER[figure.grade])


def node_yaml(topology: Topology, accelerator: str, dump: str) -> str:
    """A node file of one host of *topology*, whose accelerators are *accelerator*.

    Raise :exc:`CannotProfileError` where hosts differ, or nothing stands in for what *dump* cannot tell, and
    :exc:`FileNotFoundError` for an accelerator that is not there.
    """
    accelerator_id = load_accelerator(accelerator, Path()).id
    like_id = _like(accelerator_id)
    held = _one_host(topology)
    draft = _Draft(topology, dump, load_node(like_id, Path()), like_id, held)
    count = sum(device.kind == "accelerator" for device in held)
    group = groups(topology)[0]
    whole = {device.id for device in held if device.kind == "accelerator"} <= set(group.members)
    count //= group.dies if whole else 1
    links = (
        _joined(draft, group, accelerator_id, count) if whole and group.kind else _pcie(draft, accelerator_id, count)
    )
    parts = [*links, *_nic(draft, count), *_host(draft)]
    lines = [
        *comment(topology, dump, draft.remarks),
        f"name: {json.dumps(f'{count} x {accelerator_id}, imported from {dump}')}",
        f"accelerator: {json.dumps(accelerator)}",
        f"accelerators: {count}",
        *parts,
    ]
    return "\n".join(lines) + "\n"


def _like(accelerator: str) -> str:
    carried: dict[str, list[str]] = {}
    for path in sorted(shipped("hardware_profiles", "nodes").glob("*.yaml")):
        carried.setdefault(load_node(path.stem, Path()).accelerator, []).append(path.stem)
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


def _joined(draft: _Draft, group: Group, accelerator: str, count: int) -> list[str]:
    """The block scale_up where links of one kind join the whole host."""
    domain = len(group.members) // group.dies
    sheet = sheet_for(accelerator, group.kind)
    if group.bandwidth_bytes_per_s is None:
        has = (
            f"{accelerator} has no {group.kind} in hardware_profiles/links"
            if sheet is None
            else "links are not counted"
        )
        raise CannotProfileError(f"the rate of {group.kind} is not in the dump, and {has}: which accelerator is it?")
    words = f"{draft.imported}: {_links_words(group)}"
    words += f" ({sheet.name}: {sheet.rate.source})" if sheet else ""
    grade = sheet.rate.grade if sheet else "assumed"
    held = sheet.accelerators[accelerator] if sheet else 0
    if group.links and group.links < held:
        draft.remarks.append(f"{group.links} of the {held} {group.kind} links that {accelerator} has are in use")
    if group.shape == "partial mesh":
        draft.remarks.append(
            "pairs without a link of their own share the others' evenly: taken as a full mesh of thinner links"
        )
    peer = group.peer_bandwidth_bytes_per_s or group.bandwidth_bytes_per_s
    like = draft.like.scale_up
    latency = (
        str(Entry(written(group.latency_s, "s"), draft.imported, "assumed"))
        if group.latency_s
        else str(draft.taken(like.latency, "s"))
    )
    lines = [
        "scale_up:",
        f"  kind: {'switch' if group.shape == 'switch' else 'mesh'}",
        f"  domain: {domain if domain % count == 0 else count}",
        f"  bandwidth: {Entry(human_rate(group.bandwidth_bytes_per_s), words, grade)}",
        f"  peer_bandwidth: {Entry(human_rate(peer), words, grade)}",
        f"  latency: {latency}",
    ]
    if domain > count and domain % count == 0:
        lines += [
            "  beyond_node:",
            f"    bandwidth: {Entry(human_rate(group.bandwidth_bytes_per_s), words, grade)}",
            f"    latency: {latency}",
        ]
    return [*lines, *_collectives(draft, draft.like, draft.like_id, count)]


def _links_words(group: Group) -> str:
    if group.links is None:
        return f"{group.kind}, {group.shape}"
    each = human_rate(group.bandwidth_bytes_per_s / group.links) if group.bandwidth_bytes_per_s else "?"
    return f"{group.kind}, {group.links} links x {each}, {group.shape}"


def _pcie(draft: _Draft, accelerator: str, count: int) -> list[str]:
    """The block scale_up where no fast links join the whole host: every pair at the rate of PCIe."""
    found = groups(draft.topology)
    fast = [group for group in found if len(group.members) > 1]
    if fast:
        sizes = ", ".join(f"{len(group.members)} by {group.kind}" for group in fast)
        draft.remarks.append(f"groups of {sizes} are joined, the host as a whole by PCIe: every pair is priced as PCIe")
    rates = [d.uplink_bytes_per_s for d in draft.held if d.kind == "accelerator" and d.uplink_bytes_per_s]
    sheet = sheet_for(accelerator, "pcie")
    if rates:
        entry = Entry(human_rate(min(rates)), f"{draft.imported}: PCIe link of an accelerator", "datasheet")
    elif sheet is not None:
        rate = sheet.rate.value * sheet.accelerators[accelerator]
        entry = Entry(human_rate(rate), f"not in the dump; {sheet.name}: {sheet.rate.source}", "assumed")
    else:
        raise CannotProfileError(
            f"the rate of PCIe is not in the dump, and {accelerator} has none in hardware_profiles/links"
        )
    alike = load_node(_PCIE_ALIKE, Path())
    lines = [
        "scale_up:",
        "  kind: switch",
        f"  domain: {count}",
        f"  bandwidth: {entry}",
        f"  peer_bandwidth: {entry}",
        f"  latency: {draft.taken(alike.scale_up.latency, 's', like=_PCIE_ALIKE)}",
    ]
    return [*lines, *_collectives(draft, alike, _PCIE_ALIKE, count)]


def _collectives(draft: _Draft, like: Node, like_id: str, count: int) -> list[str]:
    lines = ["  collectives:"]
    for operation, collective in like.scale_up.collectives.items():
        lines += [f"    {operation}:", f"      share: {draft.taken(collective.share, '', like=like_id)}"]
        few = {ranks: figure for ranks, figure in collective.few_ranks.items() if ranks < count}
        if few:
            lines.append("      few_ranks:")
            lines += [f"        {ranks}: {draft.taken(figure, '', like=like_id)}" for ranks, figure in few.items()]
        for name in ("start", "step", "bulk"):
            figure = getattr(collective, name)
            lines += [f"      {name}: {draft.taken(figure, 's', like=like_id)}"] if figure else []
    return lines


def _nic(draft: _Draft, count: int) -> list[str]:
    """The block nic, from the NICs that go with accelerators; none where the dump lists no NIC."""
    mine = {device.id for device in draft.held}
    found = [port for port in ports(draft.topology) if port.nic.id in mine]
    if draft.topology.dimensions[1:]:
        return _nic_of_dimension(draft)
    if not found:
        draft.remarks.append("no NIC is in the dump, so the node has no port; jobs on several nodes need the block nic")
        return []
    best = min((port.by for port in found if port.by), key=ORDER.index, default="SYS")
    near = [port.nic for port in found if port.by == best or (best in ORDER[:2] and port.by in ORDER[:2])]
    rates = [nic.port_bytes_per_s for nic in near if nic.port_bytes_per_s]
    like = draft.like.nic
    counted = f"{len(near)} of {len(found)} NICs, the nearest ({best}), for {count} accelerators"
    if len(rates) == len(near):
        bandwidth = Entry(human_rate(sum(rates) / count), f"{draft.imported}: {counted}", "datasheet")
    elif like is not None:
        factor = min(1.0, len(near) / count)
        bandwidth = draft.taken(
            like.bandwidth, "B/s", factor, why=f"{draft.imported}: {counted}; rate of a port not told"
        )
    else:
        draft.remarks.append("the rates of the NICs are not told, and no shipped node stands in: no block nic")
        return []
    share, latency = (like.share, like.latency) if like else (None, None)
    if share is None or latency is None:
        draft.remarks.append("what NICs attain is not told, and no shipped node stands in: no block nic")
        return []
    return [
        "nic:",
        f"  bandwidth: {bandwidth}",
        f"  share: {draft.taken(share, '')}",
        f"  latency: {draft.taken(latency, 's')}",
    ]


def _nic_of_dimension(draft: _Draft) -> list[str]:
    layer, like = draft.topology.dimensions[1], draft.like.nic
    if like is None:
        return []
    told = layer.bandwidth_bytes_per_s
    rate = (
        Entry(human_rate(told), f"{draft.imported}: dimension 2", "assumed")
        if told
        else draft.taken(like.bandwidth, "B/s")
    )
    late = layer.latency_s
    latency = (
        Entry(written(late, "s"), f"{draft.imported}: dimension 2", "assumed")
        if late
        else draft.taken(like.latency, "s")
    )
    return ["nic:", f"  bandwidth: {rate}", f"  share: {draft.taken(like.share, '')}", f"  latency: {latency}"]


def _host(draft: _Draft) -> list[str]:
    """The blocks host_link, ddr and nvme."""
    like = draft.like
    rates = [d.uplink_bytes_per_s for d in draft.held if d.kind == "accelerator" and d.uplink_bytes_per_s]
    narrow = min(rates) * _PCIE_SHARE if rates else None
    lines = ["host_link:"]
    for name, figure in (("h2d", like.host_link.h2d), ("d2h", like.host_link.d2h)):
        if narrow is not None and narrow < 0.98 * figure.value:
            entry = Entry(
                human_rate(narrow),
                f"{draft.imported}: PCIe link of an accelerator, {_PCIE_SHARE:.0%} attained",
                "scaled",
            )
        else:
            entry = draft.taken(figure, "B/s")
        lines.append(f"  {name}: {entry}")
    memory = [device.capacity_bytes for device in draft.topology.of("numa") if device.capacity_bytes]
    held = (
        Entry(written(sum(memory), "B"), f"{draft.imported}: memory of {len(memory)} NUMA nodes", "measured")
        if memory
        else draft.taken(like.ddr.capacity, "B")
    )
    lines += ["ddr:", f"  capacity: {held}", f"  bandwidth: {draft.taken(like.ddr.bandwidth, 'B/s')}"]
    if like.nvme is None:
        return lines
    drives = [device.capacity_bytes for device in draft.topology.of("drive") if device.capacity_bytes]
    size = (
        Entry(written(sum(drives), "B"), f"{draft.imported}: {len(drives)} drives", "measured")
        if drives
        else draft.taken(like.nvme.capacity, "B")
    )
    return [
        *lines,
        "nvme:",
        f"  capacity: {size}",
        f"  read: {draft.taken(like.nvme.read, 'B/s')}",
        f"  write: {draft.taken(like.nvme.write, 'B/s')}",
    ]
