"""InfiniBand subnets, link lists, fat trees and dimensions; numbers worked out from the dumps by hand."""

from pathlib import Path

import pytest

from simulator.documents import InvalidDocument
from simulator.hardware.export import astra_sim
from simulator.hardware.importers import import_topology
from simulator.hardware.survey import groups, layers, tiers

DUMPS = Path(__file__).parent / "data" / "topologies"


def load(name):
    return import_topology(DUMPS / name)


def refused(tmp_path, name, change):
    path = tmp_path / name
    path.write_text(change((DUMPS / name).read_text()))
    with pytest.raises(InvalidDocument) as error:
        import_topology(path)
    return str(error.value)


def test_two_rails_with_half_as_many_uplinks():
    # Each leaf: 4 hosts below and one cable to each of 2 spines, all NDR: 2:1.
    topology = load("ibnetdiscover-two-rails.out")
    leaf, spine = tiers(topology)
    assert (len(leaf.switches), leaf.hosts, leaf.railed) == (2, 4, True)
    assert (len(spine.switches), spine.hosts, spine.oversubscription) == (2, 4, 2.0)
    assert {nic.port_bytes_per_s for nic in topology.of("nic")} == {50e9}
    assert [nic.rail for nic in topology.of("nic")].count(1) == 4
    assert len(topology.of("host")) == 4
    assert "2 aggregation nodes of SHARP were left out: they are no hosts" in topology.assumed


def test_a_subnet_that_is_cut_off_keeps_what_its_switches_tell(tmp_path):
    text = (DUMPS / "ibnetdiscover-two-rails.out").read_text()
    (tmp_path / "cut.out").write_text(text[: text.index("caguid")])
    topology = import_topology(tmp_path / "cut.out")
    assert len(topology.of("nic")) == 8
    # 8 cables to hosts are listed by the leaves alone; 4 between switches by both.
    assert "8 of 12 cables are listed by one end only, and were taken as they are" in topology.assumed


def test_a_port_with_two_cables_is_refused(tmp_path):
    says = refused(tmp_path, "ibsim-one-switch.txt", lambda text: text.replace('[2]\t"Right"', '[1]\t"Right"'))
    assert "port 1 of Middle has two cables" in says


def test_ibsim_needs_both_ends(tmp_path):
    says = refused(tmp_path, "ibsim-one-switch.txt", lambda text: text.replace('"Right"[1]', '"Rihgt"[1]'))
    assert "leads to Rihgt, which is not in the file" in says
    assert len(load("ibsim-one-switch.txt").of("host")) == 2


def test_servers_with_nvswitch_on_two_rails():
    topology = load("simai-two-servers.topo")
    assert [group.members for group in groups(topology)] == [("gpu0", "gpu1"), ("gpu2", "gpu3")]
    assert groups(topology)[0].bandwidth_bytes_per_s == 450e9
    leaf, spine = tiers(topology)
    assert (leaf.hosts, leaf.railed, len(spine.switches), spine.oversubscription) == (2, True, 1, 2.0)
    assert [nic.rail for nic in topology.of("nic")] == [0, 1, 0, 1]


def test_a_plain_list_of_hosts_and_switches():
    topology = load("hpcc-four-hosts.topo")
    assert [len(topology.of(kind)) for kind in ("host", "accelerator", "switch", "nic")] == [4, 4, 2, 4]
    assert [link.bandwidth_bytes_per_s for link in topology.links][-1] == 25e9


def test_a_list_shorter_than_it_says_is_refused(tmp_path):
    says = refused(tmp_path, "simai-two-servers.topo", lambda text: "\n".join(text.split("\n")[:9]))
    assert "counts 10 links in its first line, but 7 follow" in says


def test_domains_of_nvlink_over_leaves():
    topology = load("topograph-two-domains.yaml")
    assert [device.id for device in topology.of("host")] == [f"tray0{i}" for i in range(1, 9)]
    assert [(len(tier.switches), tier.hosts) for tier in tiers(topology)] == [(2, 4), (1, 8)]
    assert sum(link.kind == "nvlink" for link in topology.links) == 8


def test_dimensions_stand_for_accelerators_and_links():
    # 3 meshes of 4 are 3 * 6 links, and 4 switches join one accelerator of each mesh.
    topology = load("astra-sim-mesh-switch.yml")
    assert len(topology.of("accelerator")) == 12
    assert [sum(link.kind == kind for link in topology.links) for kind in ("scale-up", "cable")] == [18, 12]
    assert layers(topology)[0].latency_s == pytest.approx(700e-9)


def test_what_was_imported_from_astra_sim_is_exported_the_same():
    text = astra_sim(layers(load("astra-sim-mesh-switch.yml")), "")
    assert text.split("\n")[-5:-1] == [
        "topology: [ FullyConnected, Switch ]",
        "npus_count: [ 4, 3 ]",
        "bandwidth: [ 64.0, 50.0 ]  # GB/s",
        "latency: [ 700.0, 2000.0 ]  # ns",
    ]


def test_a_fat_tree_narrows_above_its_leaves():
    # 4 ports of 400 Gbit/s down and 2 up: each of 16 nodes has 25 GB/s above its leaf when all speak.
    inner, outer = load("astra-sim-fat-tree.topo").dimensions
    assert (inner.size, inner.bandwidth_bytes_per_s, outer.size, outer.bandwidth_bytes_per_s) == (4, 50e9, 4, 25e9)
    assert outer.oversubscription == 2.0


def test_sizes_alone_have_no_rates_to_export():
    with pytest.raises(ValueError, match="the rate of logical, logical is not in the dump"):
        astra_sim(layers(load("astra-sim-logical.json")), "")


def test_all_problems_of_dimensions_at_once(tmp_path):
    def change(text):
        return text.replace("FullyConnected", "FulyConnected").replace("4, 3", "4, 0").replace("64.0, 50.0", "64.0")

    says = refused(tmp_path, "astra-sim-mesh-switch.yml", change)
    assert "2 of topology, 2 of npus_count, 1 of bandwidth, 2 of latency" in says
    assert "npus_count: found 0" in says
    assert "did you mean 'FullyConnected'?" in says


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("astra-sim-mesh-switch.yml", "4, 3", "100000, 1000"),
        ("astra-sim-logical.json", '"4"', '"999999"'),
        ("topograph-two-domains.yaml", "[05-08]", "[05-99999999]"),
        ("simai-two-servers.topo", "9 2 2 3 10", "9999999 2 2 3 10"),
    ],
)
def test_what_would_fill_the_memory_is_refused(tmp_path, name, old, new):
    assert refused(tmp_path, name, lambda text: text.replace(old, new))
