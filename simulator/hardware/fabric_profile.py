"""A fabric file from a topology: tiers of switches from the hosts upwards, with the capacity that was counted."""

from __future__ import annotations

import json

from simulator.hardware.profile import Entry, comment, written
from simulator.hardware.survey import SwitchTier, tiers
from simulator.hardware.topology import Topology
from simulator.units import human_rate


def fabric_yaml(topology: Topology, dump: str) -> str | None:
    """A fabric file of the switches between hosts; None where the dump knows none."""
    if topology.dimensions:
        return _fabric_of_dimensions(topology, dump)
    found = tiers(topology)
    if not found:
        return None
    layer = {name: height for height, tier in enumerate(found) for name in tier.switches}
    level = sum(link.one in layer and layer[link.one] == layer.get(link.other) for link in topology.links)
    beside = [f"cables between {level} pairs of switches of one tier are left out"] if level else []
    lines = [*comment(topology, dump, beside), f"name: {json.dumps(f'Fabric imported from {dump}')}"]
    rates = [device.port_bytes_per_s for device in topology.of("nic") if device.port_bytes_per_s]
    if rates:
        each = (
            max(1, round(len(topology.of("nic")) / len(topology.of("accelerator"))))
            if topology.of("accelerator")
            else 1
        )
        source = f"imported from {dump}" + (f": {each} ports per accelerator" if each > 1 else "")
        lines.append(f"port_bandwidth: {Entry(human_rate(min(rates) * each), source, 'datasheet')}")
    latency_s = next((x.latency_s for x in topology.links if x.kind == "cable" and x.latency_s), None)
    if latency_s:
        lines.append(
            f"hop_latency: {Entry(written(latency_s, 's'), f'imported from {dump}: delay of a link', 'assumed')}"
        )
    lines.append("tiers:")
    reach = 0
    for height, tier in enumerate(found, 1):
        nodes = -(-tier.hosts // reach) * reach if reach else tier.hosts
        if nodes > reach:
            lines += _tier(height, tier, nodes, dump)
            reach = nodes
    return "\n".join(lines) + "\n"


def _tier(height: int, tier: SwitchTier, nodes: int, dump: str) -> list[str]:
    names = {1: "leaf", 2: "spine", 3: "core"}
    kind = "rail" if height == 1 else "spine" if height == 2 else "core"
    counted = f"imported from {dump}: {len(tier.switches)} switches"
    told = f"{counted}, the worst ratio of capacity below to above them"
    over = Entry(round(tier.oversubscription, 4), told if height > 1 else f"{counted} next to the ports", "datasheet")
    if not tier.links_known:
        over = Entry(1, f"{counted}; numbers and rates of their links are not told", "assumed")
    return [
        f"  - name: {names.get(height, f'tier{height}')}",
        f"    kind: {kind}",
        f"    nodes: {nodes}",
        f"    oversubscription: {over}",
        f"    hops: {2 * height - 1}",
    ]


def _fabric_of_dimensions(topology: Topology, dump: str) -> str | None:
    first = topology.dimensions[0]
    outer = topology.dimensions if first.kind == "cable" else topology.dimensions[1:]
    if not outer:
        return None
    lines = [*comment(topology, dump), f"name: {json.dumps(f'Fabric imported from {dump}')}"]
    rates = [layer.bandwidth_bytes_per_s for layer in outer]
    if rates[0] is not None:
        lines.append(f"port_bandwidth: {Entry(human_rate(rates[0]), f'imported from {dump}: the ports', 'assumed')}")
    lines.append("tiers:")
    nodes, before = 1, rates[0]
    for height, layer in enumerate(outer, 1):
        nodes *= layer.size
        rate = layer.bandwidth_bytes_per_s
        over = max(1.0, before / rate) if before and rate else 1.0
        before = rate
        if layer.size > 1:
            tier = SwitchTier(("",) * layer.size, nodes, False, over, rate is not None)
            lines += _tier(height, tier, nodes, dump)
    return "\n".join(lines) + "\n" if nodes > 1 else None
