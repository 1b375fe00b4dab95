"""Prices of a broadcast: by hand, and beside what nccl-tests printed for 12 V100 of a DGX-2."""

from pathlib import Path
from statistics import median

import numpy as np
import pytest

from simulator.hardware.cluster import Cluster, assemble
from simulator.hardware.collective import Run, Timed
from simulator.hardware.library import build_cluster, load_accelerator, load_fabric, load_node
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.program.alone import alone_s
from simulator.program.network import Network

HERE, MIB = Path(), 2**20
NVLINK, PORT, V100 = 450e9, 50e9, 150e9
RUN = "wohlbier/nccl-tests@33ee81a README.md, in place"
GATHERS = (
    (48, 57.40), (1008, 57.47), (8160, 57.26), (65520, 58.99), (262128, 62.90), (1048560, 73.95), (4194288, 149.7),
    (16777200, 375.4), (33554400, 578.6), (67108848, 595.5), (134217696, 1146.6), (268435440, 2246.1),
    (536870880, 4451.5), (1073741808, 8837.0), (2147483616, 17644), (4294967280, 35154), (8589934560, 70089),
)  # fmt: skip
BROADCASTS = {
    8: 59.96, 1024: 60.80, 8192: 58.61, 65536: 60.88, 131072: 73.91, 262144: 73.24, 524288: 76.50, MIB: 79.08,
    2 * MIB: 75.47, 4 * MIB: 89.17, 8 * MIB: 131.7, 16 * MIB: 215.9, 32 * MIB: 361.0, 64 * MIB: 638.7,
    128 * MIB: 1190.5, 256 * MIB: 2283.1, 512 * MIB: 4481.7, 1024 * MIB: 8852.2, 2048 * MIB: 17640, 4096 * MIB: 35192,
    8192 * MIB: 70368,
}  # fmt: skip


def bare(accelerators: int) -> Cluster:
    """H200 nodes whose collectives reach all of the NVLink rate at one latency."""
    node = load_node("hgx-h200", HERE)
    node = node.model_copy(update={"scale_up": node.scale_up.model_copy(update={"collectives": {}})})
    return assemble(node, load_accelerator("h200-sxm", HERE), load_fabric("rail-fat-tree-400g", HERE), accelerators)


def v100() -> Cluster:
    """12 accelerators whose gathers are the published ones."""
    run = Run(ranks=12, algorithm="ring", source=RUN, points=tuple((float(n), us * 1e-6) for n, us in GATHERS))
    gathers = Timed(operation="all_gather", bandwidth=V100, links=V100, scaled=False, runs=(run,))
    node = load_node("hgx-h200", HERE)
    rate = node.scale_up.bandwidth.model_copy(update={"value": V100})
    links = node.scale_up.model_copy(
        update={"domain": 12, "bandwidth": rate, "collectives": {"all_gather": gathers}, "in_switch": None}
    )
    node = node.model_copy(update={"accelerators": 12, "scale_up": links})
    return assemble(node, load_accelerator(node.accelerator, HERE), load_fabric("single-node", HERE), 12)


def test_every_link_inside_a_node_carries_all_of_it() -> None:
    hardware, mesh = bare(8), Mesh(tp=8)
    sizes = [level.size for level in hardware.levels]
    transfer = Network(hardware, Placement(mesh, apart(mesh.groups(), 8), sizes), mesh).broadcast("tp", 900e6)
    assert transfer is not None
    assert transfer.kind == "one_to_all"
    assert set(transfer.duration_ns.tolist()) == {int(np.ceil((900e6 / NVLINK + 2e-6) * 1e9))}
    assert transfer.collective.link_busy_ns == pytest.approx({"scale_up": 900e6 / NVLINK * 1e9})
    assert np.asarray(transfer.collective.wire_bytes).tolist() == [900e6] * 8


def test_between_nodes_it_takes_the_steps_of_one_round() -> None:
    hardware = bare(16)
    seconds, taken = alone_s(hardware, "one_to_all", 16, 1600e6)
    # Eight ports share what leaves a node, at 97 % of their rate; 14 steps over NVLink and one over the network.
    latency_s = 8.4e-6 + 14 * 3.4e-6 + 14e-6 + hardware.levels[1].latency_s
    assert taken == ("ring Simple",)
    assert seconds == pytest.approx(1600e6 / 8 / (0.97 * PORT) + latency_s, abs=1e-9)


def test_a_lone_rank_sends_nothing() -> None:
    assert alone_s(bare(8), "one_to_all", 1, 1e6) == (0.0, ())


def test_a_small_one_waits_as_long_as_a_small_gather() -> None:
    hardware = build_cluster("hgx-h200", "single-node", 8, HERE)
    assert alone_s(hardware, "one_to_all", 8, 8)[0] == pytest.approx(alone_s(hardware, "all_gather", 8, 8)[0], abs=2e-9)


def test_twelve_v100_by_their_own_gathers() -> None:
    hardware = v100()
    errors = {size: alone_s(hardware, "one_to_all", 12, size)[0] * 1e6 / us - 1 for size, us in BROADCASTS.items()}
    assert median(map(abs, errors.values())) == pytest.approx(0.063, abs=0.001)
    # NCCL changes to another protocol at 128 KiB, which the wait of the shortest gather does not know.
    assert min(errors.values()) == pytest.approx(errors[131072]) == pytest.approx(-0.21, abs=0.01)
    assert max(errors.values()) == pytest.approx(0.090, abs=0.001)
