"""A cluster with a slow link or dead rails: what is left of each level for a job that waits for its slowest member.

Rings pass every port and an exchange ends with its busiest one, so one slow link slows its whole level. A dead rail is
one port less in a node: the others carry its traffic, handed over inside the node. Wrong where a job leaves the node
out, or a library routes around a link that is slow and not dead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulator.hardware.cluster import Cluster, Level

_INSIDE = frozenset({"scale_up", "super_node"})


def degrade(cluster: Cluster, links: Mapping[str, float], dead_rails: int) -> Cluster:
    """*cluster* with the share of *links*, by level, that its slowest link still moves, and *dead_rails* in a node.

    Raise :exc:`ValueError` with what there is, for levels that the cluster does not reach and rails it does not have.
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

    def left(level: Level) -> Level:
        share = links.get(level.name, 1.0)
        if level.name not in _INSIDE:
            share *= (rails - dead_rails) / rails
        return replace(
            level,
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * share,
            peer_bandwidth_bytes_per_s=level.peer_bandwidth_bytes_per_s * share,
        )

    return replace(cluster, levels=tuple(left(level) for level in cluster.levels))
