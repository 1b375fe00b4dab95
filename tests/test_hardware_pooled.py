"""Host memory of other nodes of a super-node: 16 chips of a CloudMatrix384 on two nodes, by hand."""

from pathlib import Path

import pytest
from small_jobs import Small

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.node_memory import shared_capacities
from simulator.hardware.cluster import Cluster
from simulator.hardware.library import build_cluster
from simulator.hardware.pooled import pooled
from simulator.program.host_memory import HostMemory


def cluster(lent: int) -> Cluster:
    whole = build_cluster("cloudmatrix-910c", "cloudmatrix-384", 16, Path())
    return pooled(whole, lent) if lent else whole


def test_two_nodes_share_what_two_others_lend() -> None:
    assert shared_capacities(cluster(0))["ddr"] == 1536e9
    assert shared_capacities(cluster(2))["ddr"] == 2 * 1536e9


def test_copies_pass_all_hosts_links_at_once_and_half_of_them_the_scale_up_links() -> None:
    own, pool = (HostMemory(cluster(lent), 1).out(8e9) for lent in (0, 2))
    # 80 GB/s of the host's link and 563 GB/s x 0.8 of memory for eight cards; latency 6 us.
    assert own.duration_ns[0] == pytest.approx(max(8e9 / 80e9, 8 * 8e9 / (563e9 * 0.8)) * 1e9 + 6e3)
    assert pool.duration_ns[0] == pytest.approx(max(8e9 / 160e9, 8 * 8e9 / (2 * 563e9 * 0.8)) * 1e9 + 6e3)
    assert pool.collective.link_busy_ns["super_node"] == pytest.approx(4e9 / 380e9 * 1e9)


def test_much_lent_memory_is_bound_by_the_scale_up_links() -> None:
    # 46 nodes lend to two: of 24 parts one is a node's own.
    pool = HostMemory(cluster(46), 1).out(8e9)
    assert pool.duration_ns[0] == pytest.approx(8e9 * 23 / 24 / 380e9 * 1e9 + 6e3)


def test_nodes_beyond_the_super_node_lend_nothing() -> None:
    with pytest.raises(ValueError, match=r"2 nodes in use \+ 47 = 49, and a super-node has 48; allowed: up to 46"):
        cluster(47)
    with pytest.raises(ValueError, match="scale-up links of HGX H200 end at the node; allowed: 0"):
        pooled(build_cluster("hgx-h200", "rail-fat-tree-400g", 16, Path()), 1)


def test_memory_that_nothing_uses_is_refused(small: Small) -> None:
    on_it = ("cluster.node=cloudmatrix-910c", "cluster.fabric=cloudmatrix-384", "cluster.memory_nodes=2")
    with pytest.raises(Refused, match="nothing is kept in host memory"):
        assemble_job(*small("dense", *on_it))
    assert assemble_job(*small("dense", *on_it, "training.offload.activations=streamed")).cluster.memory_nodes == 2
