"""What the published dumps hold, where they are at hand: accelerators, NICs, switches and groups, counted in them."""

from pathlib import Path

import pytest

from simulator.hardware.importers import import_topology
from simulator.hardware.survey import groups, tiers

HERE = Path(__file__).parents[1].parent / "shared" / "facts" / "topologies"
pytestmark = pytest.mark.skipif(not HERE.is_dir(), reason="the published dumps are not here")

HOSTS = [
    ("nvsmi_topo_h20_8gpu_8nic.txt", 8, 8, [("nvlink", "switch", 8, 18)]),
    ("nvsmi_topo_h100_8gpu_9nic_reversed.txt", 8, 9, [("nvlink", "switch", 8, 18)]),
    ("nvsmi_topo_h100_8gpu_no_nic.txt", 8, 0, [("nvlink", "switch", 8, 18)]),
    ("nvsmi_topo_a100_8gpu_no_nic.txt", 8, 0, [("nvlink", "switch", 8, 12)]),
    ("nvsmi_topo_a800_8gpu_9nic_truncated.txt", 8, 9, [("nvlink", "switch", 8, 8)]),
    ("nvsmi_topo_gb200_4gpu_6nic_truncated.txt", 4, 6, [("nvlink", "switch", 4, 18)]),
    ("nvsmi_topo_v100_4gpu_mlx5col.txt", 4, 1, [("nvlink", "mesh", 4, 6)]),
    ("nvsmi_topo_a100pcie_8gpu_nvlink_pairs.txt", 8, 0, [("nvlink", "mesh", 2, 12)] * 4),
    ("nvsmi_topo_2gpu_nv2.txt", 2, 0, [("nvlink", "mesh", 2, 2)]),
    ("nvsmi_topo_2gpu_phb.txt", 2, 0, [("", "none", 1, 0)] * 2),
    ("nvsmi_topo_rtx4090_8gpu_pcie_1nic.txt", 8, 1, [("", "none", 1, 0)] * 8),
    ("nvsmi_topo_rtx4090_8gpu_all_sys_2nic.txt", 8, 2, [("", "none", 1, 0)] * 8),
    ("nccl_debug_paths_rtx4090_excerpt.txt", 8, 0, [("", "none", 1, 0)] * 8),
    ("npusmi_topo_910b_8npu_hccs.txt", 8, 0, [("hccs", "mesh", 8, 7)]),
    ("xpusmi_topo_p800_8xpu_8nic_rebuilt.txt", 8, 8, [("xpulink", "mesh", 4, None)] * 2),
    ("rocmsmi_topo_mi300_tpx_partial_failure.txt", 12, 0, [("xgmi", "partial mesh", 12, 8)]),
    ("rccl_topo_mi300x_8gpu_8x400g.xml", 8, 8, [("xgmi", "mesh", 8, 7)]),
    ("rccl_topo_mi250x_8gcd.xml", 8, 1, [("xgmi", "partial mesh", 8, 3)]),
    ("nccl_topo_dgxa100_excerpt.xml", 1, 1, [("nvlink", "switch", 1, 12)]),
    ("hwloc_dgx2_nvswitch.xml", 16, 0, [("nvlink", "switch", 8, None)] * 2),
    ("hwloc_power8_gpu_nvlink.xml", 4, 0, [("nvlink", "mesh", 2, None)] * 2),
    ("simai_ns3_spectrumx_16gpu.topo", 16, 16, [("nvlink", "switch", 8, None)] * 2),
    ("simai_ns3_dcnplus_dualtor_16gpu.topo", 16, 32, [("nvlink", "switch", 8, None)] * 2),
    ("astrasim_analytical_hgx_h100_validated.yml", 8, 0, [("scale-up", "switch", 8, 1)]),
    ("astrasim_analytical_3d_ring_fc_switch.yml", 64, 0, [("scale-up", "mesh", 2, 1)] * 32),
    ("astrasim_htsim_8nodes.topo", 8, 0, [("", "none", 1, 0)] * 8),
    ("astrasim_ns3_logical_16nodes_2D.json", 16, 0, [("scale-up", "switch", 8, 1)] * 2),
]
FABRICS = [
    ("ibnetdiscover_6switch_excerpt.out", 10, [(4, 4, True, 1.0), (2, 10, False, 1.0)]),
    ("ibsim_net_2sw4hca.txt", 4, [(2, 2, False, 1.0)]),
    ("simai_ns3_spectrumx_16gpu.topo", 2, [(8, 2, True, 1.0), (2, 2, False, 1.0)]),
    ("simai_ns3_dcnplus_dualtor_16gpu.topo", 2, [(2, 2, False, 1.0), (8, 2, False, 2.0)]),
    ("topograph_model_nvl72.yaml", 72, [(4, 18, False, 1.0), (2, 36, False, 1.0), (1, 72, False, 1.0)]),
]


@pytest.mark.parametrize(("name", "accelerators", "nics", "joined"), HOSTS, ids=lambda value: str(value)[:40])
def test_accelerators_nics_and_groups(name, accelerators, nics, joined):
    topology = import_topology(HERE / name)
    assert (len(topology.of("accelerator")), len(topology.of("nic"))) == (accelerators, nics)
    assert [(group.kind, group.shape, len(group.members), group.links) for group in groups(topology)] == joined


@pytest.mark.parametrize(("name", "hosts", "layers"), FABRICS, ids=lambda value: str(value)[:40])
def test_hosts_and_tiers(name, hosts, layers):
    topology = import_topology(HERE / name)
    assert len(topology.of("host")) == hosts
    found = [(len(tier.switches), tier.hosts, tier.railed, tier.oversubscription) for tier in tiers(topology)]
    assert found == layers
