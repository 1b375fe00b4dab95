"""Matrices of the vendors' topo commands, on small dumps of invented machines; numbers counted by hand."""

from pathlib import Path

import pytest

from simulator.documents import InvalidDocument
from simulator.hardware.importers import import_topology
from simulator.hardware.survey import groups
from simulator.hardware.topology import ports, summed

DUMPS = Path(__file__).parent / "data" / "topologies"


def load(name):
    return import_topology(DUMPS / name)


def altered(tmp_path, name, change):
    path = tmp_path / name
    path.write_text(change((DUMPS / name).read_text()))
    return path


def test_eighteen_links_to_each_of_three_peers_are_a_switch():
    topology = load("nvidia-smi-switch.txt")
    (group,) = groups(topology)
    assert (group.kind, group.shape, group.links, len(group.members)) == ("nvlink", "switch", 18, 4)
    assert summed(topology)["nvlink", None] == 4 * 18
    assert any("54 links to its peers" in sentence for sentence in topology.assumed)


def test_a_nic_goes_with_the_gpu_behind_its_pcie_switch_and_has_the_name_of_the_legend():
    found = ports(load("nvidia-smi-switch.txt"))
    assert [(port.nic.id, port.nic.name, port.nearest, port.by) for port in found] == [
        (f"NIC{i}", f"mlx5_{i + 2}", (f"GPU{i}",), "PIX") for i in range(4)
    ]


def test_numa_nodes_come_from_the_affinity_column():
    chains = load("nvidia-smi-switch.txt").chains()
    numa = {name: next(d.name for d in chain if d.kind == "numa") for name, chain in chains.items() if "GPU" in name}
    assert numa == {"GPU0": "NUMA node 0", "GPU1": "NUMA node 0", "GPU2": "NUMA node 1", "GPU3": "NUMA node 1"}


def test_four_links_to_each_of_three_peers_are_cables():
    (group,) = groups(load("nvidia-smi-old-mesh.txt"))
    assert (group.shape, group.links) == ("mesh", 12)


def test_a_nic_column_without_a_legend_is_a_nic():
    (port,) = ports(load("nvidia-smi-old-mesh.txt"))
    assert (port.nic.id, port.by, len(port.nearest)) == ("mlx5_0", "NODE", 4)


def test_pairs_by_bridges_are_groups_of_two():
    assert [group.members for group in groups(load("nvidia-smi-pairs.txt"))] == [("GPU0", "GPU1"), ("GPU2", "GPU3")]


def test_a_dump_that_is_cut_off_is_filled_by_symmetry_and_says_how_far():
    # 8 devices; the rows of GPU0 to GPU2 are left. Of the 28 pairs 10 are among the five devices without a row.
    # Told once: GPU0 to GPU2 with each of those five: 15.
    topology = load("nvidia-smi-cut-off.txt")
    assert any(sentence.startswith("15 cells of the matrix were filled") for sentence in topology.assumed)
    assert "the path between 10 pairs of devices: neither cell is in the dump" in topology.unknown
    assert [len(group.members) for group in groups(topology)] == [4]


def test_glued_labels_and_the_colours_of_a_terminal_are_read_and_said():
    topology = load("nvidia-smi-glued.txt")
    assert any(sentence.startswith("1 labels that were glued") for sentence in topology.assumed)
    assert [port.by for port in ports(topology)] == ["PIX"] * 4


def test_a_header_without_leading_blank_and_processors_in_place_of_numa_nodes():
    topology = load("npu-smi-mesh.txt")
    (group,) = groups(topology)
    assert (topology.format, group.kind, group.shape, group.links) == ("npu-smi info -t topo", "hccs", "mesh", 3)
    assert len(topology.of("numa")) == 4
    assert "4 NUMA nodes were told apart by CPU affinity" in topology.assumed


def test_two_dies_of_a_package_are_told_from_the_switch_between_packages():
    (group,) = groups(load("npu-smi-super-node.txt"))
    assert (group.kind, group.shape, group.dies, len(group.members)) == ("unified bus", "switch", 2, 4)


def test_unknown_cells_stay_unknown():
    topology = load("xpu-smi-groups.txt")
    assert [(group.kind, len(group.members)) for group in groups(topology)] == [("xpulink", 2), ("xpulink", 2)]
    # 4 x 4 pairs of XPU and NIC, 4 of them told, and 6 pairs of NICs.
    assert "the path between 18 pairs of devices: neither cell is in the dump" in topology.unknown


def test_the_block_of_link_types_is_found_behind_that_of_weights():
    topology = load("rocm-smi-mesh.txt")
    (group,) = groups(topology)
    assert (group.kind, group.shape, group.links) == ("xgmi", "mesh", 3)
    assert len(topology.of("numa")) == 2


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (lambda text: text.replace("NV18", "NVX8", 1), 2, "row GPU0, column GPU1: unknown label 'NVX8'"),
        (lambda text: text.replace(" X ", "SYS", 1), 2, "row GPU0 has SYS in its own column, expected X"),
        (lambda text: text.replace("NV18", "SYS", 1), 3, "GPU0 to GPU1 is SYS, but GPU1 to GPU0 is NV18"),
        (lambda text: text.replace("GPU1\tNV18", "GPU0\tNV18"), 3, "row GPU0 is there twice"),
        (lambda text: text.split("\n")[0], 1, "no row of the matrix is left"),
        (lambda text: text.replace("GPU1\tGPU2", "GPU1\tGPU1", 1), 1, "header names GPU1 twice"),
    ],
)
def test_a_damaged_matrix_is_refused_with_its_line(tmp_path, change, line, says):
    path = altered(tmp_path, "nvidia-smi-switch.txt", change)
    with pytest.raises(InvalidDocument) as refused:
        import_topology(path)
    assert says in str(refused.value)
    assert f"{path.name}:{line}:" in str(refused.value)
