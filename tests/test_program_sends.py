"""Sends by hand and beside those of a DGX H100 (microsoft/vidur@7d47565, h100_dgx_send_recv.csv)."""

from pathlib import Path

import numpy as np
import pytest

from simulator.hardware.cluster import Cluster, assemble
from simulator.hardware.library import build_cluster, load_accelerator, load_fabric, load_node
from simulator.program.alone import alone_s
from simulator.program.sends import send_times

KIB, MIB = 2**10, 2**20
PORT = 0.86 * 50e9


def two_nodes_of_one() -> Cluster:
    node = load_node("hgx-h100", Path())
    links = node.scale_up.model_copy(update={"domain": 1})
    node = node.model_copy(update={"accelerators": 1, "scale_up": links})
    return assemble(node, load_accelerator("h100-sxm", Path()), load_fabric("rail-fat-tree-400g", Path()), 2)


def test_a_send_waits_for_the_start_of_an_exchange_of_two_and_for_its_bytes() -> None:
    cluster = build_cluster("hgx-h100", "rail-fat-tree-400g", 16, Path())
    near, far = cluster.levels
    busy_s, wait_s = send_times(cluster, np.array([0, 1]), 43e6)
    # 6.49 us: the shortest all-to-all of two H100. Between nodes NCCL's base of 8.4 us and step of 14 us.
    assert wait_s == pytest.approx([6.49e-6, 22.4e-6 + far.latency_s])
    assert busy_s == pytest.approx(np.array([[43e6 / (near.share * 450e9), 0.0], [0.0, 43e6 / PORT]]))


def test_two_members_of_a_mesh_have_one_link_between_them() -> None:
    cluster = build_cluster("mi300x-oam", "single-node", 8, Path())
    (level,) = cluster.levels
    busy_s, _ = send_times(cluster, np.array([0]), 1e9)
    assert busy_s == pytest.approx(1e9 / (level.peer_bandwidth_bytes_per_s * level.share))
    assert level.peer_bandwidth_bytes_per_s < level.bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("size", "measured_us", "error"), [(130 * KIB, 8, -0.14), (MIB, 10, -0.02), (64 * MIB, 193, 0.12)]
)
def test_sends_inside_a_node_beside_measured_ones(size: int, measured_us: float, error: float) -> None:
    cluster = build_cluster("hgx-h100", "single-node", 2, Path())
    assert alone_s(cluster, "send", 2, size)[0] / (measured_us * 1e-6) - 1 == pytest.approx(error, abs=0.015)


@pytest.mark.parametrize(
    ("size", "measured_us", "error"), [(130 * KIB, 24, 0.16), (MIB, 54, -0.10), (64 * MIB, 1871, -0.15)]
)
def test_sends_between_nodes_beside_measured_ones(size: int, measured_us: float, error: float) -> None:
    assert alone_s(two_nodes_of_one(), "send", 2, size)[0] / (measured_us * 1e-6) - 1 == pytest.approx(error, abs=0.015)
