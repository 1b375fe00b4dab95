"""A cluster with slow links, dead rails or slow nodes: what is left of it for a job that waits for its slowest member.

Rings pass every port and an exchange ends with its busiest one, so one slow link slows its whole level. A dead rail is
one port less in a node: the others carry its traffic, handed over inside the node. In a slow node every kernel takes
longer by the same factor. Wrong where a job leaves the node out, a library routes around a link that is slow and not
dead, or a node's clocks are throttled and its memory's are not: then kernels that memory bounds keep their time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulator.hardware.cluster import Cluster, Level

_INSIDE = frozenset({"scale_up", "super_node"})


def degrade(cluster: Cluster, links: Mapping[str, float], dead_rails: int, slow_nodes: Mapping[int, float]) -> Cluster:
    """*cluster* with the share of *links*, by level, that its slowest link still moves, *dead_rails* in a node, and the
    share of their pace at which *slow_nodes*, by number, compute.

    Raise :exc:`ValueError` with what there is, for levels that the cluster does not reach, and rails and nodes that it
    does not have.
    """
    names, rails = [level.name for level in cluster.levels], cluster.node.accelerators
    unknown = [name for name in links if name not in names]
    if unknown:
        raise ValueError(
            f"links: {cluster.accelerators} accelerators reach no {unknown[0]}; allowed: {', '.join(names)}"
        )
    if dead_rails and not set(names) - _INSIDE:
        raise ValueError(f"dead_rails: {cluster.accelerators} accelerators use no rails; leave it out")
    if dead_rails >= rails:
        raise ValueError(
            f"dead_rails: a node has {rails} rails, {dead_rails} dead leave none; nearest valid: {rails - 1}"
        )
    absent = [number for number in slow_nodes if number >= cluster.nodes]
    if absent:
        raise ValueError(
            f"slow_nodes: found node {absent[0]}, but {cluster.accelerators} accelerators are nodes 0 to "
            f"{cluster.nodes - 1} of {rails}; nearest valid: {cluster.nodes - 1}"
        )

    def left(level: Level) -> Level:
        share = links.get(level.name, 1.0)
        if level.name not in _INSIDE:
            share *= (rails - dead_rails) / rails
        return replace(
            level,
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * share,
            peer_bandwidth_bytes_per_s=level.peer_bandwidth_bytes_per_s * share,
        )

    slow = tuple((number, share) for number, share in sorted(slow_nodes.items()) if share < 1)
    return replace(cluster, levels=tuple(left(level) for level in cluster.levels), slow_nodes=slow)
