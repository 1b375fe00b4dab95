"""Host memory of other nodes of a super-node, which its accelerators load from and store to over the scale-up links.

Pages are spread evenly: a node's cards use its own memory and an equal part of all memory that is lent. What they copy
passes the links of all hosts at once, and what is not their own the scale-up links as well. Wrong where pages are
placed by hand, or lent memory is filled last.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.hardware.cluster import Cluster

LEVEL = "super_node"


def pooled(cluster: Cluster, memory_nodes: int) -> Cluster:
    """*cluster* with the host memory of so many other nodes. Raise :exc:`ValueError` where they lie too far away."""
    links, node = cluster.node.scale_up, cluster.node
    domain = links.domain // node.accelerators
    if links.beyond_node is None or domain < 2:
        raise ValueError(f"found {memory_nodes}, but scale-up links of {node.name} end at the node; allowed: 0")
    used = cluster.nodes
    if used + memory_nodes > domain:
        raise ValueError(
            f"found {memory_nodes}, but {used} nodes in use + {memory_nodes} = {used + memory_nodes}, and a super-node "
            f"has {domain}; allowed: up to {max(0, domain - used)}"
        )
    return replace(cluster, memory_nodes=memory_nodes)


def memory_ratio(cluster: Cluster) -> float:
    """Host memory that a node's cards use, over the node's own."""
    return 1.0 + cluster.memory_nodes / cluster.nodes


def reached_bytes_per_s(cluster: Cluster) -> float:
    """What one card loads from, or stores to, memory of other nodes."""
    beyond = cluster.node.scale_up.beyond_node
    assert beyond is not None
    return beyond.bandwidth.value
