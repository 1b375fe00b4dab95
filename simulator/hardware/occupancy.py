"""Compute units that transfers occupy while they run, as a share of all.

A channel of the library is a block of threads on one unit, which waits and copies there until the transfer has ended.
Wrong where the library opens fewer channels for small messages, and for kernels that memory and not arithmetic bounds:
those lose what the transfer takes of the memory's rate.
"""

from __future__ import annotations

from typing import Literal

from simulator.hardware.cluster import Cluster

Occupant = Literal["collective", "in_switch", "exchange", "between_nodes", "send_between_nodes"]


def share_taken(cluster: Cluster, occupant: Occupant) -> float:
    """Of a kind of transfer; where the channels or the units are not known, what the node says of all kinds."""
    channels = cluster.node.scale_up.channels
    if channels is None:
        return cluster.node.scale_up.compute_taken.value
    figure = getattr(channels, occupant)
    return share_of_units(cluster, figure.value if figure is not None else channels.collective.value)


def share_of_units(cluster: Cluster, units: float) -> float:
    """Of *units* compute units; where their number is not known, what the node says of all kinds of transfers."""
    count = cluster.accelerator.sheet.sm_count
    return units / count.value if count is not None else cluster.node.scale_up.compute_taken.value
