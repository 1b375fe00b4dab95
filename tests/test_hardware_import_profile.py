"""Node and fabric files made from dumps load as such, and hold what the dump told."""

from pathlib import Path

import pytest

from simulator.hardware.fabric_profile import fabric_yaml
from simulator.hardware.importers import import_topology
from simulator.hardware.library import build_cluster, load_fabric, load_node
from simulator.hardware.link_sheet import link_sheets, with_rates
from simulator.hardware.node_profile import node_yaml
from simulator.hardware.profile import CannotProfileError
from simulator.shipped import shipped

DUMPS = Path(__file__).parent / "data" / "topologies"


def node_of(tmp_path, name, accelerator):
    topology = with_rates(import_topology(DUMPS / name), accelerator)
    (tmp_path / "mine.yaml").write_text(node_yaml(topology, accelerator, name))
    return load_node("mine", tmp_path)


def fabric_of(tmp_path, name):
    (tmp_path / "mine.yaml").write_text(fabric_yaml(import_topology(DUMPS / name), name) or "")
    return load_fabric("mine", tmp_path)


def test_counted_links_times_the_rate_of_one(tmp_path):
    node = node_of(tmp_path, "nvidia-smi-switch.txt", "h200-sxm")
    assert (node.accelerators, node.scale_up.kind, node.scale_up.domain) == (4, "switch", 4)
    assert node.scale_up.bandwidth.value == 450e9
    assert "imported from nvidia-smi-switch.txt: nvlink, 18 links x 25 GB/s" in node.scale_up.bandwidth.source
    # Four NICs for four accelerators, each at the rate of the shipped node's.
    assert node.nic.bandwidth.value == 50e9
    assert node.nic.bandwidth.grade == "assumed"


def test_what_another_machine_attained_is_graded_lower(tmp_path):
    node = node_of(tmp_path, "nvidia-smi-switch.txt", "h200-sxm")
    assert node.host_link.h2d.grade == "scaled"
    assert node.host_link.h2d.source.startswith("not in the dump; as hgx-h200: ")
    # Collectives were timed on this part over links of this rate, wherever it stands.
    assert {timed.grade for timed in node.scale_up.collectives.values()} == {"measured"}


def test_a_degraded_machine_has_the_links_it_has(tmp_path):
    text = (DUMPS / "nvidia-smi-switch.txt").read_text().replace("NV18", "NV16")
    (tmp_path / "dump.txt").write_text(text)
    topology = with_rates(import_topology(tmp_path / "dump.txt"), "h200-sxm")
    written = node_yaml(topology, "h200-sxm", "dump.txt")
    assert "16 of the 18 nvlink links that h200-sxm has are in use" in written
    (tmp_path / "mine.yaml").write_text(written)
    links = load_node("mine", tmp_path).scale_up
    assert links.bandwidth.value == 400e9
    assert {timed.grade for timed in links.collectives.values()} == {"scaled"}


def test_pairs_are_priced_as_pcie_and_say_so(tmp_path):
    node = node_of(tmp_path, "nvidia-smi-pairs.txt", "a100-80g-sxm")
    assert node.scale_up.bandwidth.value == pytest.approx(31e9, rel=0.01)
    assert "groups of 2 by nvlink, 2 by nvlink are joined" in (tmp_path / "mine.yaml").read_text()
    assert node.nic is None


def test_packages_are_counted_and_not_dies(tmp_path):
    node = node_of(tmp_path, "npu-smi-super-node.txt", "ascend-910c")
    assert (node.accelerators, node.scale_up.domain, node.scale_up.bandwidth.value) == (2, 2, 392e9)
    assert node.scale_up.beyond_node is None


def test_ports_memory_and_drives_that_a_dump_tells(tmp_path):
    assert node_of(tmp_path, "nccl-switch.xml", "h100-sxm").nic.bandwidth.grade == "datasheet"
    node = node_of(tmp_path, "hwloc-two-gpus.xml", "h100-sxm")
    assert node.ddr.capacity.value == pytest.approx(2 * 274877906944, rel=1e-3)
    assert node.ddr.capacity.grade == "measured"
    # Two drives where the shipped node has eight that read 55.4 and write 33.9 GB/s.
    assert node.nvme is not None
    assert (node.nvme.drives.value, node.nvme.read.value, node.nvme.write.value) == (2, 13.85e9, 8.475e9)
    # PCIe 4 of the dump is half of what the shipped node's copies need: 0.88 x 31.5 GB/s.
    assert node.host_link.h2d.value == pytest.approx(27.73e9, rel=1e-3)
    assert node.scale_up.bandwidth.value == 100e9


def test_tiers_of_a_subnet(tmp_path):
    fabric = fabric_of(tmp_path, "ibnetdiscover-two-rails.out")
    assert fabric.port_bandwidth.value == 50e9
    assert [(tier.kind, tier.nodes, tier.oversubscription.value) for tier in fabric.tiers] == [("rail", 4, 1)]


def test_tiers_above_the_leaves_narrow(tmp_path):
    fabric = fabric_of(tmp_path, "hpcc-four-hosts.topo")
    assert [(tier.nodes, tier.hops) for tier in fabric.tiers] == [(2, 1)]
    wide = fabric_of(tmp_path, "astra-sim-fat-tree.topo")
    assert [(tier.nodes, tier.oversubscription.value) for tier in wide.tiers] == [(4, 1), (16, 2)]


def test_dimensions_become_a_node_and_a_fabric(tmp_path):
    node = node_of(tmp_path, "astra-sim-mesh-switch.yml", "mi300x")
    assert (node.accelerators, node.scale_up.kind) == (4, "mesh")
    assert (node.scale_up.bandwidth.value, node.scale_up.peer_bandwidth.value) == (192e9, 64e9)
    assert (node.nic.bandwidth.value, node.nic.latency.value) == (50e9, 2e-6)
    (tmp_path / "node.yaml").write_text((tmp_path / "mine.yaml").read_text())
    fabric_of(tmp_path, "astra-sim-mesh-switch.yml")
    cluster = build_cluster("node", "mine", 12, tmp_path)
    assert [level.size for level in cluster.levels] == [4, 12]


@pytest.mark.parametrize(
    ("name", "accelerator", "says"),
    [
        ("xpu-smi-groups.txt", "tpu-v5p", "no shipped node carries tpu-v5p"),
        ("npu-smi-mesh.txt", "h200-sxm", "the rate of hccs is not in the dump, and h200-sxm has no hccs"),
        ("ibnetdiscover-two-rails.out", "h200-sxm", "tells of a fabric and of no node"),
        ("astra-sim-fat-tree.topo", "h200-sxm", "tells of a fabric and of no node"),
    ],
)
def test_what_cannot_be_known_is_refused_with_the_reason(name, accelerator, says):
    topology = with_rates(import_topology(DUMPS / name), accelerator)
    with pytest.raises(CannotProfileError) as refused:
        node_yaml(topology, accelerator, name)
    assert says in str(refused.value)


def test_hosts_that_differ_are_refused(tmp_path):
    text = (DUMPS / "simai-two-servers.topo").read_text().replace("9 2 2 3 10", "9 3 2 3 10")
    (tmp_path / "dump.topo").write_text(text)
    topology = import_topology(tmp_path / "dump.topo")
    with pytest.raises(CannotProfileError, match="server0: 3, server1: 1"):
        node_yaml(topology, "h100-sxm", "dump.topo")


def test_every_link_sheet_names_accelerators_that_are_there():
    known = {path.stem for path in shipped("hardware_profiles", "accelerators").glob("*.yaml")}
    assert {name for sheet in link_sheets() for name in sheet.accelerators} <= known
    nvlink = {name: sheet for sheet in link_sheets() for name in sheet.accelerators if sheet.kind == "nvlink"}
    assert nvlink["b200-sxm"].rate.value * nvlink["b200-sxm"].accelerators["b200-sxm"] == 900e9
