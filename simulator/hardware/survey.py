"""What a topology amounts to: groups joined by scale-up links, the tiers of switches above the hosts, and layers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from simulator.hardware.topology import SCALE_UP, Device, Dimension, Link, Topology


@dataclass(frozen=True, slots=True)
class Group:
    """Accelerators that reach each other over scale-up links alone."""

    members: tuple[str, ...]
    kind: str
    """Of the links; empty for an accelerator that has none."""
    shape: Literal["switch", "mesh", "partial mesh", "none"]
    """partial mesh: some pairs have no link of their own, as in a ring."""
    links: int | None
    """Of each accelerator, all together; the fewest where they differ. None where not counted."""
    bandwidth_bytes_per_s: float | None
    """Of those links."""
    peer_bandwidth_bytes_per_s: float | None
    """Between two accelerators: all of the above through a switch, one pair's links in a mesh."""
    latency_s: float | None
    dies: int = 1
    """Devices of the dump in one package."""


def groups(topology: Topology) -> list[Group]:
    """Scale-up groups, largest first; accelerators without such links are groups of one."""
    by_device: dict[str, list[Link]] = defaultdict(list)
    for link in topology.links:
        if link.kind in SCALE_UP:
            by_device[link.one].append(link)
            by_device[link.other].append(link)
    switches = {device.id for device in topology.of("switch")}
    return [_group(members, by_device, switches) for members in topology.domains()]


def _group(members: list[str], by_device: dict[str, list[Link]], switches: set[str]) -> Group:
    held = {name: [link for link in by_device[name] if link.kind != "die"] for name in members}
    own = {name: links for name, links in held.items() if links}
    if len(members) == 1 and not own:
        return Group((members[0],), "", "none", 0, None, None, None)
    kinds = Counter(link.kind for links in own.values() for link in links)
    kind = kinds.most_common(1)[0][0] if kinds else "die"
    switched = any({link.one, link.other} & switches for links in own.values() for link in links)
    pairs = {frozenset((link.one, link.other)) for links in own.values() for link in links}
    whole = switched or len(pairs) == len(members) * (len(members) - 1) // 2
    counts = [_total(link.count for link in links) for links in own.values()]
    rates = [_total(link.bandwidth_bytes_per_s for link in links) for links in own.values()]
    latencies = [link.latency_s for links in own.values() for link in links if link.latency_s is not None]
    rate = min((one for one in rates if one is not None), default=None) if None not in rates else None
    count = min((one for one in counts if one is not None), default=None) if None not in counts else None
    peer = rate if switched or rate is None or len(members) == 1 else rate / (len(members) - 1)
    dies = 2 if any(link.kind == "die" for name in members for link in by_device[name]) else 1
    hops = 2 if switched else 1
    return Group(
        tuple(members),
        kind,
        "switch" if switched else "mesh" if whole else "partial mesh",
        int(count) if count is not None else None,
        rate,
        peer,
        hops * max(latencies) if latencies else None,
        dies,
    )


def _total(values: Iterable[float | None]) -> float | None:
    listed = list(values)
    return None if None in listed or not listed else sum(value for value in listed if value is not None)


@dataclass(frozen=True, slots=True)
class SwitchTier:
    """One layer of switches between hosts."""

    switches: tuple[str, ...]
    hosts: int
    """Hosts in one domain of the tier."""
    railed: bool
    """Whether each leaf holds one rail only."""
    oversubscription: float
    """Capacity below over capacity above, of the switches one layer below; the worst of them, 1 at least."""
    links_known: bool
    """Whether that came from rates or counts of links; otherwise it is assumed."""


def tiers(topology: Topology) -> list[SwitchTier]:
    """Layers of switches from the hosts upwards; empty where the dump knows no cables."""
    cables = [link for link in topology.links if link.kind == "cable"]
    switches = {device.id for device in topology.of("switch")}
    ends = _ends(topology)
    above: dict[str, list[tuple[str, Link]]] = defaultdict(list)
    for link in cables:
        above[link.one].append((link.other, link))
        above[link.other].append((link.one, link))
    layer = {name: 1 for name in ends if name not in switches for name, _ in above[name] if name in switches}
    frontier = list(layer)
    while frontier:
        step = {other: layer[name] + 1 for name in frontier for other, _ in above[name] if other in switches}
        frontier = [name for name in step if name not in layer]
        layer |= {name: step[name] for name in frontier}
    return [_tier(height, layer, above, ends) for height in range(1, max(layer.values(), default=0) + 1)]


def _ends(topology: Topology) -> dict[str, tuple[str, int | None]]:
    """Host and rail by whatever has a cable to a switch: a NIC, or a host itself."""
    chains = topology.chains()
    ends: dict[str, tuple[str, int | None]] = {}
    for device in topology.devices:
        if device.kind in {"nic", "host", "accelerator"}:
            ends[device.id] = (chains[device.id][-1].id, device.rail)
    return ends


def _tier(
    height: int,
    layer: dict[str, int],
    above: dict[str, list[tuple[str, Link]]],
    ends: dict[str, tuple[str, int | None]],
) -> SwitchTier:
    here = [name for name, at in layer.items() if at == height]
    reached = [_hosts_below(name, layer, above, ends) for name in here]
    railed = height == 1 and len({rail for rails in reached for rail in rails.values()} - {None}) > 1
    rails = [set(_rails(name, above, ends)) - {None} for name in here]
    railed = railed and all(len(one) <= 1 for one in rails)
    ratios = [_narrowing(name, layer, above) for name, at in layer.items() if at == height - 1]
    known = [ratio for ratio in ratios if ratio is not None]
    return SwitchTier(
        tuple(here),
        max((len(hosts) for hosts in reached), default=0),
        railed,
        max([1.0, *known]),
        bool(known) or height == 1,
    )


def _rails(
    name: str, above: dict[str, list[tuple[str, Link]]], ends: dict[str, tuple[str, int | None]]
) -> list[int | None]:
    return [ends[other][1] for other, _ in above[name] if other in ends]


def _hosts_below(
    name: str,
    layer: dict[str, int],
    above: dict[str, list[tuple[str, Link]]],
    ends: dict[str, tuple[str, int | None]],
) -> dict[str, int | None]:
    """Hosts under a switch, with the rail that they come in by."""
    hosts: dict[str, int | None] = {}
    todo, seen = [name], {name}
    for switch in todo:
        for other, _ in above[switch]:
            if other in ends:
                hosts.setdefault(*ends[other])
            elif layer.get(other, 99) < layer[switch] and other not in seen:
                seen.add(other)
                todo.append(other)
    return hosts


def _narrowing(name: str, layer: dict[str, int], above: dict[str, list[tuple[str, Link]]]) -> float | None:
    """Capacity of the cables below a switch over that of those above it, by rates or else by counts."""
    up = [link for other, link in above[name] if layer.get(other, 0) > layer[name]]
    down = [link for other, link in above[name] if layer.get(other, 0) < layer[name]]
    for amounts in (
        ([x.bandwidth_bytes_per_s for x in up], [x.bandwidth_bytes_per_s for x in down]),
        (
            [x.count for x in up],
            [x.count for x in down],
        ),
    ):
        high, low = _total(amounts[0]), _total(amounts[1])
        if high and low:
            return low / high
    return None


def layers(topology: Topology) -> tuple[Dimension, ...]:
    """The topology as dimensions, innermost first: one scale-up group, hosts of a leaf, units of the tiers above.

    Where the accelerators of a host are not all in one group, the host is one layer at the rate of PCIe, which is None
    where the dump does not tell it.
    """
    if topology.dimensions:
        return topology.dimensions
    by_host = {name: held for name, held in topology.hosts().items() if any(one.kind == "accelerator" for one in held)}
    if not by_host:
        return ()
    first = next(iter(by_host.values()))
    held = [device for device in first if device.kind == "accelerator"]
    found = [_inner(topology, held)]
    rate = port_rate(first)
    latency_s = next((link.latency_s for link in topology.links if link.kind == "cable"), None)
    inside = max(1, found[0].size // len(held))
    for tier in tiers(topology):
        if tier.hosts > inside:
            rate = rate / tier.oversubscription if rate is not None else None
            size = tier.hosts // inside
            found.append(Dimension("switch", size, "cable", rate, latency_s, None, tier.oversubscription))
            inside *= size
    return tuple(found)


def _inner(topology: Topology, held: list[Device]) -> Dimension:
    largest = groups(topology)[0]
    if {device.id for device in held} <= set(largest.members) and len(held) > 1:
        shape: Literal["switch", "mesh"] = "switch" if largest.shape == "switch" else "mesh"
        rate = largest.peer_bandwidth_bytes_per_s
        size = len(largest.members) // largest.dies
        return Dimension(shape, size, largest.kind, rate, largest.latency_s, largest.links)
    rates = [device.uplink_bytes_per_s for device in held]
    slowest = None if None in rates else min(rate for rate in rates if rate is not None)
    return Dimension("switch", len(held), "pcie", slowest)


def port_rate(held: list[Device]) -> float | None:
    """Scale-out rate of one accelerator of a host: its NICs' ports together over its accelerators."""
    accelerators = sum(device.kind == "accelerator" for device in held)
    ports = _total(device.port_bytes_per_s for device in held if device.kind == "nic")
    return ports / accelerators if ports is not None and accelerators else None
