"""One host: NUMA nodes above, the PCIe tree down to accelerators and NICs, and the scale-up links below them."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from simulator.hardware.survey import Group, groups
from simulator.hardware.topology import Device, Topology
from simulator.report.paper import FAINT
from simulator.report.shapes import COLOURS, arc, box, line, note, plain
from simulator.report.topology_table import spoken
from simulator.units import human_bytes, human_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_LEAVES = 40
_LEAF = 0.0
_WORDS = {
    "nic": "NIC",
    "pcie switch": "PCIe switch",
    "host bridge": "host bridge",
    "numa": "NUMA node",
    "drive": "drive",
}


def draw_host(axes: Axes, topology: Topology) -> list[tuple[str, str]]:
    """Draw the first host with accelerators into *axes*; return the legend's entries."""
    host = _first_host(topology)
    tree = _Tree(host)
    width = max(len(tree.leaves), 4)
    joined = any(group.kind for group in groups(topology))
    plain(axes, width, -2.6 if joined else -0.8, tree.top + 0.75)
    for device in tree.drawn:
        x, y = tree.place(device)
        parent = tree.parent(device)
        if parent is not None:
            line(axes, (x, y), tree.place(parent), width=1.2)
        _device(axes, tree, device, x, y)
    _sockets(axes, tree)
    _scale_up(axes, topology, tree)
    hosts = len([name for name, held in topology.hosts().items() if any(d.kind == "accelerator" for d in held)])
    if hosts > 1 or tree.cut:
        words = f"one of {hosts} hosts" * (hosts > 1) + f"{', ' * (hosts > 1)}{tree.cut} devices not drawn" * bool(
            tree.cut
        )
        note(axes, -0.5, tree.top + 0.6, words[:1].upper() + words[1:], align="left", bold=True)
    kinds = dict.fromkeys(device.kind for device in tree.drawn)
    entries = [(COLOURS[kind], _WORDS.get(kind, kind)) for kind in kinds]
    return entries + [(COLOURS["switch"], "scale-up link")] * joined


def _first_host(topology: Topology) -> list[Device]:
    chains = topology.chains()
    first = topology.of("accelerator")[0]
    top = chains[first.id][-1]
    return (
        [device for device in topology.devices if chains[device.id][-1].id == top.id]
        if top.kind == "host"
        else topology.of("accelerator")
    )


class _Tree:
    """Where each device stands: leaves side by side, what holds them above their middle."""

    def __init__(self, host: list[Device]) -> None:
        self._by_id = {device.id: device for device in host}
        below: dict[str | None, list[Device]] = defaultdict(list)
        for device in host:
            below[device.parent if device.parent in self._by_id else None].append(device)
        self._below = below
        self.drawn: list[Device] = []
        self.leaves: list[Device] = []
        self.cut = 0
        self._x: dict[str, float] = {}
        self._height: dict[str, float] = {}
        self._parent: dict[str, Device] = {}
        for root in below[None]:
            self._visit(root, None)
        inner = [self._height[d.id] for d in self.drawn if d.kind in {"pcie switch", "host bridge"}]
        self.top = max([1.0, *(height + 1 for height in inner)])
        for device in self.drawn:
            if device.kind == "numa":
                self._height[device.id] = self.top

    def _visit(self, device: Device, parent: Device | None) -> float | None:
        """Place *device* and all below it; return its x, or None where nothing of it is drawn.

        What holds one thing alone is passed over, NUMA nodes excepted.
        """
        children = sorted(self._below[device.id], key=lambda child: child.kind == "nic")
        if device.kind in {"accelerator", "nic", "drive"}:
            return self._leaf(device, parent)
        shown = device.kind == "numa" or (device.kind in {"pcie switch", "host bridge"} and self._held(device) > 1)
        places = [self._visit(child, device if shown else parent) for child in children]
        known = [x for x in places if x is not None]
        if not known or not shown:
            return sum(known) / len(known) if known else None
        self._x[device.id] = (min(known) + max(known)) / 2
        lower = [self._height[d.id] for d in self.drawn if self._parent.get(d.id) is device]
        self._height[device.id] = max([0.0, *lower]) + 1
        self._enter(device, parent)
        return self._x[device.id]

    def _leaf(self, device: Device, parent: Device | None) -> float | None:
        if len(self.leaves) >= _MOST_LEAVES:
            self.cut += 1
            return None
        self._x[device.id] = len(self.leaves) + 0.5
        self._height[device.id] = _LEAF
        self.leaves.append(device)
        self._enter(device, parent)
        for child in self._below[device.id]:
            self._visit(child, parent)
        return self._x[device.id]

    def _enter(self, device: Device, parent: Device | None) -> None:
        self.drawn.append(device)
        if parent is not None:
            self._parent[device.id] = parent

    def _held(self, device: Device) -> int:
        below = self._below[device.id]
        return sum(1 if one.kind in {"accelerator", "nic", "drive"} else self._held(one) for one in below)

    def place(self, device: Device) -> tuple[float, float]:
        """Its middle."""
        return self._x[device.id], self._height[device.id]

    def parent(self, device: Device) -> Device | None:
        """What holds it in the picture."""
        return self._parent.get(device.id)

    def x(self, name: str) -> float | None:
        """Where the device *name* stands, if it is drawn."""
        return self._x.get(name)

    def span(self, device: Device) -> tuple[float, float]:
        """From its first to its last leaf."""
        xs = [self._x[leaf.id] for leaf in self.leaves if self._is_below(leaf, device)]
        return min(xs), max(xs)

    def _is_below(self, leaf: Device, device: Device) -> bool:
        holder = self._parent.get(leaf.id)
        while holder is not None and holder is not device:
            holder = self._parent.get(holder.id)
        return holder is device


def _device(axes: Axes, tree: _Tree, device: Device, x: float, y: float) -> None:
    small = len(tree.leaves) > 20
    size = 6.5 if small else 9.0
    if device in tree.leaves:
        words = device.id if len(device.id) <= 7 else device.name if len(device.name) <= 9 else device.id[-7:]
        if device.kind == "nic" and device.port_bytes_per_s:
            words += f"\n{device.port_bytes_per_s * 8e-9:.4g}G"
        box(axes, x, y, 0.92, 0.62, device.kind, words, size)
        return
    left, right = tree.span(device)
    width = max(right - left + 0.9, 1.4)
    words = device.name or _WORDS[device.kind]
    if device.kind == "numa":
        words += f", {human_bytes(device.capacity_bytes)}" if device.capacity_bytes else ""
    elif device.uplink_bytes_per_s and width > 1.9:
        words += f", up at {human_rate(device.uplink_bytes_per_s)}"
    box(axes, x, y, width, 0.42, device.kind, words if width >= 1.9 or device.kind == "numa" else "PCIe", size)


def _sockets(axes: Axes, tree: _Tree) -> None:
    numa = [tree.place(device) for device in tree.drawn if device.kind == "numa"]
    for (one, y), (other, _) in pairwise(numa):
        line(axes, (one, y + 0.12), (other, y + 0.12), FAINT, 3.0)


def _scale_up(axes: Axes, topology: Topology, tree: _Tree) -> None:
    for group in groups(topology):
        xs = {name: x for name in group.members if (x := tree.x(name)) is not None}
        if not group.kind or not xs:
            continue
        left, right = min(xs.values()), max(xs.values())
        if group.shape == "switch":
            for x in xs.values():
                line(axes, (x, _LEAF - 0.3), (x, -1.5), COLOURS["switch"], 2.2)
            box(
                axes,
                (left + right) / 2,
                -1.5,
                max(right - left + 0.9, 2.5),
                0.42,
                "switch",
                _through(topology, group),
                9,
            )
        else:
            _mesh(axes, topology, xs)
        note(axes, (left + right) / 2, -2.2, _told(group, len(xs)))


def _mesh(axes: Axes, topology: Topology, xs: dict[str, float]) -> None:
    furthest = max(xs.values()) - min(xs.values()) or 1.0
    for link in topology.links:
        if link.kind not in {"cable", "socket", "c2c", "pcie"} and link.one in xs and link.other in xs:
            left, right = sorted((xs[link.one], xs[link.other]))
            depth = 0.35 + 1.1 * (right - left) / furthest
            arc(axes, left, right, _LEAF - 0.3, depth, COLOURS["switch"], 1.0 + 0.25 * min(link.count or 1, 6))


def _through(topology: Topology, group: Group) -> str:
    members = set(group.members)
    by_id = {device.id: device for device in topology.devices}
    switches = {
        end: by_id[end].name or "switch"
        for link in topology.links
        if link.kind == group.kind
        for end, other in ((link.one, link.other), (link.other, link.one))
        if other in members and end not in members
    }
    name = next(iter(switches.values()), "switch")
    return f"{len(switches)} x {name}" if len(switches) > 1 else name


def _told(group: Group, here: int) -> str:
    beyond = f", with {len(group.members) - here} more in other hosts" if len(group.members) > here else ""
    links = f", {group.links} links each" if group.links else ""
    rate = f", {human_rate(group.bandwidth_bytes_per_s)} per accelerator" if group.bandwidth_bytes_per_s else ""
    peer = group.peer_bandwidth_bytes_per_s
    pair = f", {human_rate(peer)} to one peer" if peer and peer != group.bandwidth_bytes_per_s else ""
    unknown = "" if rate else ", rate not told"
    return f"{spoken(group.kind)}{links}{rate}{pair}{unknown}{beyond}"
