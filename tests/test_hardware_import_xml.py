"""XML of NCCL, RCCL and hwloc; and XML that was made to do harm."""

from pathlib import Path

import pytest

from simulator.documents import InvalidDocument
from simulator.hardware.importers import import_topology
from simulator.hardware.link_sheet import with_rates
from simulator.hardware.survey import groups
from simulator.hardware.topology import ports

DUMPS = Path(__file__).parent / "data" / "topologies"

LAUGHS = """<?xml version="1.0"?>
<!DOCTYPE system [
  <!ENTITY a "lol">
  <!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
  <!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">
]>
<system version="1"><cpu numaid="0">&c;</cpu></system>
"""
FETCHES = """<!DOCTYPE topology [<!ENTITY x SYSTEM "file:///etc/hostname">]>
<topology version="3.0">&x;</topology>
"""


def refused(tmp_path, text):
    path = tmp_path / "dump.xml"
    path.write_text(text)
    with pytest.raises(InvalidDocument) as error:
        import_topology(path)
    return str(error.value)


def test_nvlinks_to_a_placeholder_are_one_nvswitch():
    topology = import_topology(DUMPS / "nccl-switch.xml")
    (group,) = groups(topology)
    assert (group.shape, group.links, len(group.members)) == ("switch", 18, 4)
    assert [(port.nic.id, port.nearest, port.by) for port in ports(topology)] == [
        (f"mlx5_{i}", (f"GPU{i}",), "PIX") for i in range(4)
    ]
    assert {nic.port_bytes_per_s for nic in topology.of("nic")} == {50e9}


def test_the_generation_that_nccl_names_tells_the_rate_of_a_link():
    (group,) = groups(with_rates(import_topology(DUMPS / "nccl-switch.xml"), None))
    assert group.bandwidth_bytes_per_s == 450e9


def test_pcie_counts_the_payload_of_its_lanes():
    gpu = import_topology(DUMPS / "nccl-switch.xml").of("accelerator")[0]
    assert gpu.uplink_bytes_per_s == pytest.approx(32e9 * 16 * 128 / 130 / 8)


def test_both_ends_list_a_link_that_is_there_once():
    topology = import_topology(DUMPS / "rccl-ring.xml")
    (group,) = groups(with_rates(topology, "mi300x"))
    assert (group.shape, group.links, len(topology.links)) == ("partial mesh", 2, 4)
    assert (group.bandwidth_bytes_per_s, group.peer_bandwidth_bytes_per_s) == (128e9, pytest.approx(128e9 / 3))


def test_hwloc_tells_memory_drives_names_and_nvlink_in_megabytes():
    topology = import_topology(DUMPS / "hwloc-two-gpus.xml")
    (group,) = groups(topology)
    assert (group.kind, group.bandwidth_bytes_per_s) == ("nvlink", 100e9)
    assert {device.capacity_bytes for device in topology.of("numa")} == {274877906944.0}
    assert {device.capacity_bytes for device in topology.of("drive")} == {3750738264 * 1024.0}
    assert {device.name for device in topology.of("accelerator")} == {"Invented 9000"}
    assert [(port.nic.id, port.nearest, port.by) for port in ports(topology)] == [
        ("mlx5_0", ("GPU0",), "PIX"),
        ("mlx5_1", ("GPU1",), "PIX"),
    ]


def test_an_excerpt_says_where_it_ends(tmp_path):
    text = "\n".join((DUMPS / "nccl-switch.xml").read_text().split("\n")[:6])
    assert "dump.xml:6: NCCL/RCCL topology XML: ends inside <gpu> of line 5: the dump is cut off" in refused(
        tmp_path, text
    )


def test_a_matrix_that_is_cut_off_is_counted(tmp_path):
    text = (DUMPS / "hwloc-two-gpus.xml").read_text().replace("100000 1000000 <", "100000 <")
    assert "NVLinkBandwidth of 2 objects has 2 names and 3 of 4 values" in refused(tmp_path, text)


def test_a_billion_laughs_are_refused_before_they_expand(tmp_path):
    assert "dump.xml:" in refused(tmp_path, LAUGHS)
    assert "declar" in refused(tmp_path, LAUGHS)


def test_nothing_is_fetched(tmp_path):
    assert "declar" in refused(tmp_path, FETCHES)


def test_nesting_is_bounded(tmp_path):
    text = "<system><cpu numaid='0'>" + "".join(f"<pci busid='{i}'>" for i in range(3000))
    assert "levels of nesting" in refused(tmp_path, text)


def test_a_bus_that_is_there_twice_is_refused(tmp_path):
    text = (DUMPS / "nccl-switch.xml").read_text().replace('dev="1" sm', 'dev="0" sm')
    assert "accelerator GPU0 is there twice" in refused(tmp_path, text)
