"""Rings through several nodes of a super-node, beside all-reduces of GB200 racks (coreweave/nccl-tests@cb86553).

The jobs that printed them have NVLS off (mpi-operator/nccl-test-distributed-gb200-nvl72-mpijob.yaml, @1bb8276).
"""

from pathlib import Path

import pytest

from simulator.hardware.cluster import Cluster, assemble
from simulator.hardware.library import load_accelerator, load_fabric, load_node
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.program.alone import alone_s
from simulator.program.network import Network

MIB = 2**20


def racks(accelerators: int, *, reduces: bool = False) -> Cluster:
    node = load_node("gb200-nvl72", Path())
    if not reduces:
        node = node.model_copy(update={"scale_up": node.scale_up.model_copy(update={"in_switch": None})})
    fabric = load_fabric("nvl72-rail-400g", Path())
    return assemble(node, load_accelerator("gb200-nvl72", Path()), fabric, accelerators)


def grade(cluster: Cluster, operation: str) -> str:
    mesh = Mesh(dp_shard=cluster.accelerators)
    placement = Placement(mesh, apart(mesh.groups(), mesh.ranks), [level.size for level in cluster.levels])
    transfer = Network(cluster, placement, mesh).ring(operation, "dp_shard", 1e9)
    assert transfer is not None
    return transfer.grade


def test_a_ring_through_a_rack_has_its_rate_and_a_step_for_each_hop() -> None:
    seconds, taken = alone_s(racks(72), "all_reduce", 72, 4096 * MIB)
    # NCCL's start and 2 x 71 steps over NVLink; 855 GB/s of bus bandwidth.
    steps_s = 8.4e-6 + 142 * 3.4e-6
    assert taken == ("ring Simple",)
    assert seconds == pytest.approx(steps_s + 2 * 71 / 72 * 4096 * MIB / (0.95 * 900e9), rel=1e-4)


@pytest.mark.parametrize(
    ("ranks", "size_mib", "measured_us", "error"),
    [
        (72, 512, 1806.7, -0.10),
        (72, 1024, 3108.8, -0.05),
        (72, 4096, 10094, 0.03),
        (144, 512, 2156.8, -0.23),
        (144, 1024, 3574.4, -0.13),
        (144, 2048, 6264, -0.04),
        (144, 16384, 42067, -0.03),
        (1440, 512, 7108.4, -0.76),
        (1440, 16384, 84625, -0.48),
    ],
)
def test_racks_beside_measured_ones(ranks: int, size_mib: int, measured_us: float, error: float) -> None:
    seconds, _ = alone_s(racks(ranks), "all_reduce", ranks, size_mib * MIB)
    assert seconds / (measured_us * 1e-6) - 1 == pytest.approx(error, abs=0.01)


def test_what_is_not_measured_of_racks_is_graded_so() -> None:
    assert grade(racks(72), "all_reduce") == "measured"
    assert grade(racks(72), "all_gather") == "scaled"
    assert grade(racks(72, reduces=True), "all_reduce") == "scaled"
    assert grade(racks(216), "all_reduce") == "assumed"
