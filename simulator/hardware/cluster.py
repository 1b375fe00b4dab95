"""Clusters: a number of nodes on a fabric, seen as nested domains of accelerators ("levels").

A level says what every accelerator of a domain can move to the rest of it when all do so at once. With uniform traffic
the slowest level is the bottleneck; :mod:`.graph` gives the links behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from simulator.hardware.accelerator import Accelerator
from simulator.hardware.fabric import Fabric, Tier
from simulator.hardware.figure import Floats
from simulator.hardware.node import Nic, Node
from simulator.hardware.segments import segment_accelerators

if TYPE_CHECKING:
    import networkx as nx

SCALE_UP_KINDS = frozenset({"switch", "mesh"})
"""Levels made of the node's own fast links, as opposed to ports into a scale-out fabric."""
_LARGE_BYTES = 1e9
"""A message whose latency does not count."""


@dataclass(frozen=True, slots=True)
class Level:
    """A domain of accelerators that reach each other without leaving it."""

    name: str
    kind: str
    """switch, mesh, rail, spine or core."""
    size: int
    """Accelerators in one domain."""
    bandwidth_bytes_per_s: float
    """Link rate of each accelerator, one direction."""
    peer_bandwidth_bytes_per_s: float
    """Link rate between two of them: below the above in a mesh."""
    latency_s: float
    """Memory to memory, one way, for a small message between two of them."""
    share: float
    """Of the link rate that large point-to-point transfers attain."""
    ring_share: float
    """The same of rings and trees between nodes."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Accelerators 0 to n - 1, node after node."""

    node: Node
    accelerator: Accelerator
    fabric: Fabric
    accelerators: int
    levels: tuple[Level, ...]
    """Innermost first; only those that the count reaches. The last holds every accelerator."""
    staged: bool = False
    """Ports reach the host's memory only, see :mod:`.staging`."""
    memory_nodes: int = 0
    """Nodes of the super-node beside those in use that lend their host memory, see :mod:`.pooled`."""
    slow_nodes: tuple[tuple[int, float], ...] = ()
    """Nodes whose accelerators compute at a share of the others' pace, with it, see :mod:`.degraded`."""

    @property
    def nodes(self) -> int:
        """Nodes in use."""
        return -(-self.accelerators // self.node.accelerators)

    @property
    def ddr_bytes_per_accelerator(self) -> float:
        """Host memory of a node over the accelerators of the node that are in use."""
        return self.node.ddr.capacity.value / min(self.accelerators, self.node.accelerators)

    @property
    def scale_up_domain(self) -> int:
        """Accelerators in use that reach each other over scale-up links."""
        whole = max(level.size for level in self.levels if level.kind in SCALE_UP_KINDS)
        return min(whole, self.accelerators)

    def pace(self, ranks: ArrayLike) -> npt.NDArray[np.float64]:
        """The share of a sound accelerator's pace at which each of *ranks* computes."""
        node = np.asarray(ranks) // self.node.accelerators
        shares = np.ones(node.shape)
        for slow, share in self.slow_nodes:
            shares[node == slow] = share
        return shares

    def port_bytes(self, level: Level, out: Floats, into: Floats) -> Floats:
        """Bytes that ports at *level* moved each way if they moved as many both ways in the time of *out* and *into*.

        Two ways of scale-up links take of each other, as far as the node says.
        """
        opposite = self.node.scale_up.opposite if level.kind in SCALE_UP_KINDS else None
        added = opposite.value if opposite else 0.0
        return (np.maximum(out, into) + added * np.minimum(out, into)) / (1 + added)

    def spanning(self, ranks: ArrayLike) -> Level:
        """The innermost level that holds all of *ranks* in one domain."""
        ranks_ = np.asarray(ranks)
        low, high = int(ranks_.min()), int(ranks_.max())
        return next(level for level in self.levels if low // level.size == high // level.size)

    def graph(self) -> nx.DiGraph:
        """The links as a directed graph, see :func:`simulator.hardware.graph.graph`."""
        from simulator.hardware.graph import graph

        return graph(self)


def assemble(node: Node, accelerator: Accelerator, fabric: Fabric, accelerators: int) -> Cluster:
    """Put *accelerators* of them on *fabric*, in segments as :mod:`.segments` has them.

    Raise :exc:`ValueError`, with the nearest counts that do exist, when the nodes would not be whole or too many.
    """
    _check(node, fabric, accelerators)
    levels = _levels(node, fabric, accelerators, segment_accelerators(node, accelerators, None))
    return Cluster(node, accelerator, fabric, accelerators, levels)


def segmented(cluster: Cluster, nodes: int) -> Cluster:
    """*cluster* with so many nodes of each scale-up domain. Raise :exc:`ValueError` where there cannot be so many."""
    used = segment_accelerators(cluster.node, cluster.accelerators, nodes)
    return replace(cluster, levels=_levels(cluster.node, cluster.fabric, cluster.accelerators, used))


def reach(node: Node, fabric: Fabric) -> int:
    """The most accelerators that *fabric* and the node's scale-up domain connect."""
    scale_out = fabric.reach_nodes * node.accelerators if node.nic else node.accelerators
    return max(scale_out, node.scale_up.domain)


def _check(node: Node, fabric: Fabric, count: int) -> None:
    held, most = node.accelerators, reach(node, fabric)
    if count < 1:
        raise ValueError(f"a cluster of {count} accelerators: at least 1 is needed")
    if count > most:
        raise ValueError(
            f"{count} accelerators: {node.name} on fabric {fabric.name} connects at most {most}; nearest valid: {most}"
        )
    if count > held and count % held:
        below = count // held * held
        valid = [near for near in (below, below + held) if near <= most]
        raise ValueError(
            f"{count} accelerators are not whole nodes: {node.name} holds {held}, {count} = {count // held} x {held} + "
            f"{count % held}; nearest valid: {' or '.join(map(str, valid))}"
        )


def _levels(node: Node, fabric: Fabric, accelerators: int, domain: int) -> tuple[Level, ...]:
    """Innermost first, up to the one that holds all; the scale-up links reach *domain* accelerators of the job."""
    reached = []
    for level in (*_scale_up(node, domain), *_scale_out(node, fabric, domain)):
        reached.append(level)
        if level.size >= accelerators:
            break
    return tuple(reached)


def _scale_up(node: Node, domain: int) -> list[Level]:
    links = node.scale_up
    exchange = links.collectives.get("all_to_all")
    share = float(exchange.share_at(links.domain, links.domain, _LARGE_BYTES)) if exchange else 1.0
    inner = Level(
        name="scale_up",
        kind=links.kind,
        size=node.accelerators,
        bandwidth_bytes_per_s=links.bandwidth.value,
        peer_bandwidth_bytes_per_s=links.peer_bandwidth.value,
        latency_s=links.latency.value,
        share=share,
        ring_share=share,
    )
    beyond = links.beyond_node
    if beyond is None:
        return [inner]
    rate = beyond.bandwidth.value
    return [inner, Level("super_node", "switch", domain, rate, rate, beyond.latency.value, share, share)]


def _scale_out(node: Node, fabric: Fabric, domain: int) -> list[Level]:
    if node.nic is None:
        return []
    tiers = [tier for tier in fabric.tiers if tier.nodes * node.accelerators > domain]
    return [_tier_level(node, node.nic, fabric, tier) for tier in tiers]


def _tier_level(node: Node, nic: Nic, fabric: Fabric, tier: Tier) -> Level:
    port = fabric.port_bandwidth.value if fabric.port_bandwidth else nic.bandwidth.value
    narrowing = 1.0
    for inner in fabric.tiers[: fabric.tiers.index(tier) + 1]:
        narrowing *= inner.oversubscription.value
    rate = min(nic.bandwidth.value, port) / narrowing
    hop_s = fabric.hop_latency.value if fabric.hop_latency else 0.0
    latency_s = nic.latency.value + tier.hops * hop_s
    share = nic.share.value
    ring_share = nic.ring_share.value if nic.ring_share else share
    return Level(tier.name, tier.kind, tier.nodes * node.accelerators, rate, rate, latency_s, share, ring_share)
