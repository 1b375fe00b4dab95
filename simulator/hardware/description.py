"""A topology in figures, for people and for `topo --json`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from simulator.hardware.survey import groups, layers, tiers
from simulator.hardware.topology import Topology, ports, summed


def describe(topology: Topology) -> dict[str, Any]:
    """What was found, what is unknown and what was assumed. Rates are bytes per second, one direction."""
    chains = topology.chains()
    numa: dict[str, list[str]] = {device.name or device.id: [] for device in topology.of("numa")}
    for device in topology.of("accelerator"):
        for holder in chains[device.id]:
            if holder.kind == "numa":
                numa[holder.name or holder.id].append(device.id)
    accelerators = topology.of("accelerator")
    return {
        "format": topology.format,
        "hosts": len(topology.of("host")),
        "accelerators": {
            "count": len(accelerators),
            "products": sorted({device.name for device in accelerators if device.name}),
        },
        "groups": [
            {
                "members": list(group.members),
                "kind": group.kind or None,
                "shape": group.shape,
                "links": group.links,
                "bandwidth_bytes_per_s": group.bandwidth_bytes_per_s,
                "peer_bandwidth_bytes_per_s": group.peer_bandwidth_bytes_per_s,
            }
            for group in groups(topology)
        ],
        "links": [
            {"kind": kind, "count": count, "bandwidth_bytes_per_s": rate}
            for (kind, rate), count in sorted(summed(topology).items(), key=lambda item: (item[0][0], item[0][1] or 0))
        ],
        "nics": [
            {
                "id": port.nic.id,
                "name": port.nic.name or None,
                "host": chains[port.nic.id][-1].id,
                "rail": port.nic.rail,
                "port_bytes_per_s": port.nic.port_bytes_per_s,
                "nearest": list(port.nearest),
                "path": port.by or None,
            }
            for port in ports(topology)
        ],
        "numa": numa,
        "switches": dict(
            Counter(d.kind for d in topology.devices if d.kind in {"switch", "pcie switch", "host bridge"})
        ),
        "drives": len(topology.of("drive")),
        "tiers": [
            {
                "switches": len(tier.switches),
                "hosts": tier.hosts,
                "railed": tier.railed,
                "oversubscription": tier.oversubscription if tier.links_known else None,
            }
            for tier in tiers(topology)
        ],
        "dimensions": len(topology.dimensions),
        "layers": [
            {
                "shape": layer.shape,
                "size": layer.size,
                "kind": layer.kind,
                "bandwidth_bytes_per_s": layer.bandwidth_bytes_per_s,
            }
            for layer in layers(topology)
        ],
        "unknown": list(topology.unknown),
        "assumed": list(topology.assumed),
    }
