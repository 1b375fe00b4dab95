"""A machine or fabric as a dump tells of it: devices, what holds them, and the links between them.

The form is neutral: an importer of any format fills it, and nothing in it is a guess unless `assumed` says so. What a
dump does not tell is None and named in `unknown`. Rates are bytes per second in one direction; a link runs both ways.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import networkx as nx

DeviceKind = Literal["accelerator", "nic", "switch", "pcie switch", "host bridge", "numa", "host", "drive"]

SCALE_UP = frozenset({"nvlink", "xgmi", "hccs", "unified bus", "xpulink", "die", "scale-up"})
"""Kinds of links that join accelerators past their hosts' PCIe."""
MAX_PARTS = 200_000
"""Devices and links of the largest fabric that is taken in."""


@dataclass(frozen=True, slots=True)
class Device:
    """One part, with what it hangs on: the tree accelerator - PCIe switch - host bridge - NUMA node - host."""

    id: str
    kind: DeviceKind
    name: str = ""
    """What the dump calls it beyond its id: a product, an interface, a switch's host name."""
    parent: str | None = None
    uplink_bytes_per_s: float | None = None
    """Rate of the PCIe link to the parent, one direction."""
    rail: int | None = None
    """Of a NIC: which accelerator of its host it goes with, or its number among the ports of its host."""
    port_bytes_per_s: float | None = None
    """Of a NIC: rate of its port. Of a drive: nothing."""
    capacity_bytes: float | None = None
    """Of a NUMA node or a drive: what it holds."""


@dataclass(frozen=True, slots=True)
class Link:
    """Parallel links of one kind between two devices."""

    one: str
    other: str
    kind: str
    """One of :data:`SCALE_UP`, or c2c, pcie, socket, cable."""
    count: int | None = 1
    """How many run side by side; None where the dump does not count them."""
    bandwidth_bytes_per_s: float | None = None
    """Of all of them together, one direction."""
    latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class Dimension:
    """One layer of a hierarchy, where a format tells of layers instead of devices; innermost first."""

    shape: Literal["switch", "mesh", "ring"]
    size: int
    """How many of the layer below it joins."""
    kind: str
    bandwidth_bytes_per_s: float | None = None
    """Of one link, one direction: to the switch, to one peer of a mesh, to one neighbour of a ring."""
    latency_s: float | None = None
    links: int | None = None
    """Links of an accelerator to the switch, or to one peer."""
    oversubscription: float = 1.0


@dataclass(frozen=True, slots=True)
class Topology:
    """What one dump holds."""

    format: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    dimensions: tuple[Dimension, ...] = ()
    """Where the format gives layers; empty where they have to be found in the links."""
    unknown: tuple[str, ...] = ()
    """Sentences: what the dump does not tell."""
    assumed: tuple[str, ...] = ()
    """Sentences: what was filled in, with how many cells or links it concerns."""

    def of(self, kind: DeviceKind) -> list[Device]:
        """The devices of *kind*, in the dump's order."""
        return [device for device in self.devices if device.kind == kind]

    def chains(self) -> dict[str, list[Device]]:
        """By device, what holds it: itself first, its host last."""
        by_id = {device.id: device for device in self.devices}
        chains: dict[str, list[Device]] = {}
        for device in self.devices:
            chain = [device]
            while chain[-1].parent is not None:
                chain.append(by_id[chain[-1].parent])
            chains[device.id] = chain
        return chains

    def hosts(self) -> dict[str, list[Device]]:
        """Accelerators and NICs by the host that holds them; "" for those that hang on none."""
        held: dict[str, list[Device]] = defaultdict(list)
        chains = self.chains()
        for device in self.devices:
            if device.kind in {"accelerator", "nic"}:
                top = chains[device.id][-1]
                held[top.id if top.kind == "host" else ""].append(device)
        return dict(held)

    def domains(self) -> list[list[str]]:
        """Accelerators that reach each other over scale-up links alone, largest group first; lone ones among them."""
        groups = components(
            [device.id for device in self.devices],
            ((link.one, link.other) for link in self.links if link.kind in SCALE_UP),
        )
        accelerators = {device.id for device in self.of("accelerator")}
        found = [[one for one in group if one in accelerators] for group in groups]
        return sorted((group for group in found if group), key=len, reverse=True)

    def graph(self) -> nx.DiGraph:
        """Every link in both directions, PCIe tree included. Edges carry `kind`, `capacity_bytes_per_s` and
        `latency_s`; the last two are None where the dump does not tell.
        """
        import networkx as nx

        graph = nx.DiGraph()
        for device in self.devices:
            graph.add_node(device.id, kind=device.kind, name=device.name)
        edges = [(link.one, link.other, link.kind, link.bandwidth_bytes_per_s, link.latency_s) for link in self.links]
        edges += [(d.id, d.parent, "pcie", d.uplink_bytes_per_s, None) for d in self.devices if d.parent]
        for one, other, kind, rate, latency_s in edges:
            for start, end in ((one, other), (other, one)):
                graph.add_edge(start, end, kind=kind, capacity_bytes_per_s=rate, latency_s=latency_s)
        return graph


def components(names: Iterable[str], pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Groups of *names* that *pairs* connect, each and all in the order of *names*."""
    leader = {name: name for name in names}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for one, other in pairs:
        leader[find(one)] = find(other)
    groups: dict[str, list[str]] = defaultdict(list)
    for name in leader:
        groups[find(name)].append(name)
    return list(groups.values())


def _nearness(one: list[Device], other: list[Device]) -> str:
    """How near two devices are by the chains of what holds them: PIX, PXB, PHB, NODE or SYS, as nvidia-smi has it."""
    above = {device.id: depth for depth, device in enumerate(one)}
    for depth, device in enumerate(other):
        if device.id in above:
            if device.kind == "pcie switch":
                switches = {d.id for d in (*one[1 : above[device.id]], *other[1:depth])}
                return "PXB" if switches else "PIX"
            return {"accelerator": "PIX", "host bridge": "PHB", "numa": "NODE"}.get(device.kind, "SYS")
    return "SYS"


ORDER = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first."""


@dataclass(frozen=True, slots=True)
class Port:
    """A NIC, and the accelerators nearest to it."""

    nic: Device
    nearest: tuple[str, ...]
    by: str
    """Of :data:`ORDER`; empty where its host has no accelerator."""


def ports(topology: Topology) -> list[Port]:
    """Each NIC with the accelerators of its host that are nearest; none where all are across a socket."""
    chains = topology.chains()
    found = []
    for held in topology.hosts().values():
        accelerators = [device for device in held if device.kind == "accelerator"]
        for nic in held:
            if nic.kind != "nic":
                continue
            near = {one.id: _nearness(chains[nic.id], chains[one.id]) for one in accelerators}
            best = min(near.values(), key=ORDER.index, default="")
            nearest = tuple(one for one, label in near.items() if label == best) if best != "SYS" else ()
            found.append(Port(nic, nearest, best))
    return found


def summed(topology: Topology) -> Counter[tuple[str, float | None]]:
    """Links by kind and rate of one link; those of the PCIe tree are of the kind "pcie"."""
    counts: Counter[tuple[str, float | None]] = Counter()
    for link in topology.links:
        number = link.count or 1
        rate = link.bandwidth_bytes_per_s
        counts[link.kind, rate / number if rate is not None else None] += number
    for device in topology.devices:
        if device.parent and device.kind not in {"numa", "host bridge"}:
            counts["pcie", device.uplink_bytes_per_s] += 1
    return counts
