"""What leaves a node through its host, by hand: eight H200 a node, 614 GB/s of host memory at 0.8."""

from pathlib import Path

import numpy as np
import pytest

from simulator.hardware.library import build_cluster
from simulator.hardware.staging import host_busy_s, staged
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.program.host_memory import HostMemory
from simulator.program.network import Network

MEMORY_BYTES_PER_S = 614e9 * 0.8


def test_the_memory_of_the_host_sets_the_rate():
    whole = build_cluster("hgx-h200", "rail-fat-tree-400g", 16, Path())
    inside, leaf = staged(whole).levels
    # Eight cards, each byte written and read on its way out, and another one on its way in: 15.35 of 50 GB/s.
    assert leaf.share * leaf.bandwidth_bytes_per_s == pytest.approx(MEMORY_BYTES_PER_S / 32)
    assert leaf.ring_share == leaf.share
    assert leaf.latency_s - whole.levels[1].latency_s == pytest.approx(2 * 6e-6)
    assert inside == whole.levels[0]


def test_a_port_that_is_slower_than_the_host_stays_as_fast():
    cluster = build_cluster("hgx-h200", "ethernet-tor-100g-3to1", 32, Path())
    ports, through_host = cluster.levels[1:], staged(cluster).levels[1:]
    assert [level.share for level in through_host] == [level.share for level in ports]


def test_an_exchange_keeps_the_links_of_the_host_busy_that_copies_use():
    cluster = staged(build_cluster("hgx-h200", "rail-fat-tree-400g", 16, Path()))
    mesh = Mesh(dp_shard=16, ep=16)
    network = Network(cluster, Placement(mesh, apart(mesh.groups(), 16), [8, 256]), mesh)
    transfer = network.exchange(np.full((16, 16), 1e6))
    assert transfer is not None
    busy_ns = transfer.collective.link_busy_ns
    # 8 MB leave each card and as many come: 8 cards * 32 MB of memory traffic.
    assert busy_ns["host memory"] == pytest.approx(8 * 32e6 / MEMORY_BYTES_PER_S * 1e9)
    assert busy_ns["leaf"] == pytest.approx(busy_ns["host memory"])
    copies = HostMemory(cluster, 16)
    used = set(copies.out(1.0).collective.link_busy_ns) | set(copies.into(1.0).collective.link_busy_ns)
    assert used == set(host_busy_s(cluster, 1.0)) < set(busy_ns)


def test_ports_that_reach_cards_share_the_cards_links_with_copies():
    cluster = build_cluster("hgx-h200", "rail-fat-tree-400g", 16, Path())
    mesh = Mesh(dp_shard=16, ep=16)
    transfer = Network(cluster, Placement(mesh, apart(mesh.groups(), 16), [8, 256]), mesh).exchange(
        np.full((16, 16), 1e6)
    )
    assert transfer is not None
    busy_ns = transfer.collective.link_busy_ns
    # 8 MB leave each card over its PCIe link of 55.06 GB/s, and no memory of the host sees them.
    assert busy_ns["host link copy_out"] == pytest.approx(8e6 / 55.06e9 * 1e9)
    assert busy_ns["host link"] == pytest.approx(16e6 / 100e9 * 1e9)  # two ports of 50 GB/s, more than 99.1 of copies
    assert "host memory" not in busy_ns
    assert busy_ns["host link copy_out"] < busy_ns["leaf"]


def test_without_ports_there_is_nothing_to_send_through_the_host():
    with pytest.raises(ValueError, match="8 accelerators use no ports"):
        staged(build_cluster("hgx-h200", "rail-fat-tree-400g", 8, Path()))
