from pathlib import Path

import numpy as np
import pytest

from simulator.hardware.library import build_cluster

HERE = Path()


def levels(node, fabric, accelerators):
    cluster = build_cluster(node, fabric, accelerators, HERE)
    return [(one.name, one.size, one.bandwidth_bytes_per_s) for one in cluster.levels]


def test_a_rail_fat_tree_is_node_unit_and_spine():
    assert levels("hgx-h200", "rail-fat-tree-400g", 512) == [
        ("scale_up", 8, 450e9),
        ("leaf", 256, 50e9),
        ("spine", 2048, 50e9),
    ]


def test_only_levels_that_the_count_reaches_are_there():
    assert levels("hgx-h200", "rail-fat-tree-400g", 8) == [("scale_up", 8, 450e9)]
    assert levels("hgx-h200", "rail-fat-tree-400g", 256) == [("scale_up", 8, 450e9), ("leaf", 256, 50e9)]


def test_two_to_one_halves_what_leaves_a_unit():
    assert levels("hgx-h200", "rail-fat-tree-400g-2to1", 512)[-1] == ("spine", 2048, 25e9)


def test_the_slower_of_port_and_nic_counts():
    assert levels("hgx-h200", "rail-fat-tree-200g-roce", 64)[-1] == ("leaf", 256, 25e9)
    assert levels("hgx-a100", "rail-fat-tree-400g", 64)[-1] == ("leaf", 256, 25e9)


def test_a_super_node_reaches_beyond_its_nodes():
    assert levels("cloudmatrix-910c", "cloudmatrix-384", 768) == [
        ("scale_up", 8, 392e9),
        ("super_node", 384, 380e9),
        ("rdma_plane", 12288, 50e9),
    ]
    assert len(levels("cloudmatrix-910c", "single-node", 384)) == 2


def test_latency_grows_with_the_switches_passed():
    cluster = build_cluster("hgx-h200", "rail-fat-tree-400g", 4096, HERE)
    assert [one.latency_s for one in cluster.levels[1:]] == pytest.approx([2.05e-6, 2.35e-6, 2.65e-6])


def test_the_innermost_level_that_holds_a_group():
    cluster = build_cluster("hgx-h200", "rail-fat-tree-400g", 512, HERE)
    assert cluster.spanning([0, 7]).name == "scale_up"
    assert cluster.spanning([7, 8]).name == "leaf"
    assert cluster.spanning([255, 256]).name == "spine"
    assert cluster.spanning([300]).name == "scale_up"


def test_host_memory_is_shared_by_the_accelerators_in_use():
    assert build_cluster("hgx-h200", "single-node", 8, HERE).ddr_bytes_per_accelerator == 192e9
    assert build_cluster("hgx-h200", "single-node", 2, HERE).ddr_bytes_per_accelerator == 768e9


@pytest.mark.parametrize(
    ("accelerators", "says"),
    [
        (0, "at least 1"),
        (12, "12 = 1 x 8 + 4; nearest valid: 8 or 16"),
        (20_000, "connects at most 16384; nearest valid: 16384"),
    ],
)
def test_a_count_that_does_not_exist_is_refused_with_the_nearest(accelerators, says):
    with pytest.raises(ValueError, match=r"accelerators") as refused:
        build_cluster("hgx-h200", "rail-fat-tree-400g", accelerators, HERE)
    assert says in str(refused.value)


def test_part_of_a_node_is_a_cluster():
    assert build_cluster("hgx-h200", "single-node", 3, HERE).nodes == 1


def test_ways_of_a_scale_up_port_take_of_each_other():
    cluster = build_cluster("hgx-h200", "rail-fat-tree-400g", 16, HERE)
    node, leaf = cluster.levels
    # A byte the other way counts for a quarter: 3 and 1 take as long as 3.25 / 1.25 both ways, 4 and none as 4 / 1.25.
    assert cluster.port_bytes(node, np.array([2.0, 3.0, 4.0]), np.array([2.0, 1.0, 0.0])).tolist() == [2.0, 2.6, 3.2]
    assert cluster.port_bytes(leaf, np.array([3.0]), np.array([1.0])).tolist() == [3.0]


def test_where_it_is_not_known_the_busier_way_counts_alone():
    cluster = build_cluster("hgx-b200", "single-node", 8, HERE)
    assert cluster.port_bytes(cluster.levels[0], np.array([1.0]), np.array([3.0])).tolist() == [3.0]
