"""The links of a cluster as a networkx graph: each edge is one direction of one link.

Vertices are tuples: ("accelerator", rank), ("scale_up", node), ("super_node", domain), ("nic", rank), ("rail", unit,
port) and (tier, domain) for what lies above the leaves. Edges carry `capacity_bytes_per_s` and `latency_s`, so that the
latency of a path is the latency of the level that it turns around in.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from simulator.hardware.cluster import Cluster, Level

if TYPE_CHECKING:
    import networkx as nx

Vertex = tuple[str, int] | tuple[str, int, int]


def graph(cluster: Cluster) -> nx.DiGraph:
    """Accelerators, NICs, scale-up switches, leaves and spines of *cluster*; the switches of a tier are one vertex."""
    import networkx as nx

    links = nx.DiGraph()
    links.add_nodes_from(("accelerator", rank) for rank in range(cluster.accelerators))
    inner = cluster.levels[0]
    if inner.kind == "mesh":
        _mesh(links, cluster, inner)
    else:
        _switches(links, cluster, inner)
    tiers = [level for level in cluster.levels if level.kind in {"rail", "spine", "core"}]
    if tiers:
        _ports(links, cluster, tiers[0])
        for below, above in pairwise(tiers):
            _uplinks(links, cluster, below, above)
    return links


def _link(links: nx.DiGraph, one: Vertex, other: Vertex, capacity: float, latency_s: float) -> None:
    for start, end in ((one, other), (other, one)):
        links.add_edge(start, end, capacity_bytes_per_s=capacity, latency_s=latency_s)


def _mesh(links: nx.DiGraph, cluster: Cluster, level: Level) -> None:
    for first in range(0, cluster.accelerators, level.size):
        members = range(first, min(first + level.size, cluster.accelerators))
        for one in members:
            for other in members:
                if one < other:
                    rate, latency_s = level.peer_bandwidth_bytes_per_s, level.latency_s
                    _link(links, ("accelerator", one), ("accelerator", other), rate, latency_s)


def _switches(links: nx.DiGraph, cluster: Cluster, level: Level) -> None:
    for rank in range(cluster.accelerators):
        switch: Vertex = ("scale_up", rank // level.size)
        _link(links, ("accelerator", rank), switch, level.bandwidth_bytes_per_s, level.latency_s / 2)
    outer = next((one for one in cluster.levels if one.name == "super_node"), None)
    if outer is None:
        return
    for node in range(cluster.nodes):
        capacity = level.size * outer.bandwidth_bytes_per_s
        domain: Vertex = ("super_node", node * level.size // outer.size)
        _link(links, ("scale_up", node), domain, capacity, (outer.latency_s - level.latency_s) / 2)


def _ports(links: nx.DiGraph, cluster: Cluster, leaf: Level) -> None:
    held = cluster.node.accelerators
    for rank in range(cluster.accelerators):
        nic: Vertex = ("nic", rank)
        switch: Vertex = ("rail", rank // leaf.size, rank % held)
        _link(links, ("accelerator", rank), nic, leaf.bandwidth_bytes_per_s, leaf.latency_s / 4)
        _link(links, nic, switch, leaf.bandwidth_bytes_per_s, leaf.latency_s / 4)


def _uplinks(links: nx.DiGraph, cluster: Cluster, below: Level, above: Level) -> None:
    """Join each domain below to its domain above, with the capacity that all accelerators below may use together."""
    extra_s = (above.latency_s - below.latency_s) / 2
    for first in range(0, cluster.accelerators, below.size):
        group = min(below.size, cluster.accelerators - first)
        upper: Vertex = (above.name, first // above.size)
        if below.kind != "rail":
            _link(links, (below.name, first // below.size), upper, group * above.bandwidth_bytes_per_s, extra_s)
            continue
        held = cluster.node.accelerators
        for port in range(held):
            capacity = group / held * above.bandwidth_bytes_per_s
            _link(links, ("rail", first // below.size, port), upper, capacity, extra_s)
