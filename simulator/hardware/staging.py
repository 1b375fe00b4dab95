"""Ports that read and write the host's memory and not the accelerator's: what leaves a node goes through two hosts.

The library's kernels copy rows to pinned memory, the port sends them from there, and on the other side the same
backwards, all of it in small pieces, so that the slowest hop sets the rate. Each byte sent is written to and read from
the memory of its node, each byte received likewise. Two passes over host links come on top of the port's latency;
inside a node, in place of peer access, they cost 9 to 17 us (NVIDIA/cuda-samples#230, p2pBandwidthLatencyTest).
"""

from __future__ import annotations

from dataclasses import replace

from simulator.hardware.cluster import SCALE_UP_KINDS, Cluster, Level

_PASSES_OF_MEMORY = 4
"""Of a byte that is sent while another one is received."""


def staged(cluster: Cluster) -> Cluster:
    """*cluster* without access of its ports to accelerators' memory. Raise :exc:`ValueError` where it uses none."""
    if all(level.kind in SCALE_UP_KINDS for level in cluster.levels):
        raise ValueError(f"{cluster.accelerators} accelerators use no ports; leave it out")
    most = 1.0 / max(host_busy_s(cluster, 1.0).values())

    def through_host(level: Level) -> Level:
        if level.kind in SCALE_UP_KINDS:
            return level
        share = most / level.bandwidth_bytes_per_s
        return replace(
            level,
            share=min(level.share, share),
            ring_share=min(level.ring_share, share),
            latency_s=level.latency_s + 2 * cluster.node.host_link.latency.value,
        )

    return replace(cluster, levels=tuple(map(through_host, cluster.levels)), staged=True)


def port_busy_s(cluster: Cluster, sent_bytes: float) -> dict[str, float]:
    """The same where ports read and write the cards' memory: that crosses the link between a card and its PCIe switch,
    over which copies go too. A port that is faster than copies are has a link to match.
    """
    link, nic = cluster.node.host_link, cluster.node.nic
    port = nic.bandwidth.value if nic is not None else 0.0
    busy = {
        "host link copy_out": sent_bytes / max(link.d2h.value, port),
        "host link copy_in": sent_bytes / max(link.h2d.value, port),
    }
    if link.both is not None:
        busy["host link"] = 2 * sent_bytes / max(link.both.value, 2 * port)
    return busy


def host_busy_s(cluster: Cluster, sent_bytes: float) -> dict[str, float]:
    """Seconds that the host's links are kept busy when each card sends and receives *sent_bytes*, by link."""
    link, ddr = cluster.node.host_link, cluster.node.ddr
    cards = min(cluster.accelerators, cluster.node.accelerators)
    busy = {
        "host link copy_out": sent_bytes / link.d2h.value,
        "host link copy_in": sent_bytes / link.h2d.value,
        "host memory": _PASSES_OF_MEMORY * cards * sent_bytes / (ddr.bandwidth.value * ddr.share.value),
    }
    if link.both is not None:
        busy["host link"] = 2 * sent_bytes / link.both.value
    return busy
