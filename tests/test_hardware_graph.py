"""Bytes routed over the links of small clusters must find the bottleneck that the levels give in closed form."""

from collections import defaultdict
from itertools import pairwise, permutations
from pathlib import Path

import networkx as nx
import pytest

from simulator.hardware.cluster import assemble
from simulator.hardware.library import build_cluster, load_accelerator, load_fabric, load_node

HERE = Path()


def small_units(oversubscription):
    """HGX H200 nodes on a fat tree with two nodes to a unit and four to the spine."""
    fabric = load_fabric("rail-fat-tree-400g", HERE)
    leaf, spine = fabric.tiers[0], fabric.tiers[1]
    over = spine.oversubscription.model_copy(update={"value": oversubscription})
    tiers = (leaf.model_copy(update={"nodes": 2}), spine.model_copy(update={"nodes": 4, "oversubscription": over}))
    node, accelerator = load_node("hgx-h200", HERE), load_accelerator("h200-sxm", HERE)
    return assemble(node, accelerator, fabric.model_copy(update={"tiers": tiers}), 32)


def rail_path(cluster, source, target):
    """As NCCL's PXN: over the scale-up links to the local accelerator on the target's rail, then along the rail."""
    held = cluster.node.accelerators
    start = source // held * held + target % held
    hops = [("accelerator", source)]
    if start != source:
        hops += [("scale_up", source // held), ("accelerator", start)]
    if start == target:
        return hops
    leaf = cluster.levels[1].size
    ups = [("rail", start // leaf, target % held)]
    if start // leaf != target // leaf:
        ups += [("spine", 0), ("rail", target // leaf, target % held)]
    return [*hops, ("nic", start), *ups, ("nic", target), ("accelerator", target)]


def slowest_s(graph, paths, bytes_each):
    load = defaultdict(float)
    for path in paths:
        for edge in pairwise(path):
            load[edge] += bytes_each
    return max(amount / graph.edges[edge]["capacity_bytes_per_s"] for edge, amount in load.items())


@pytest.mark.parametrize(("oversubscription", "expected_s"), [(1.0, 24e6 / 50e9), (2.0, 16e6 / 25e9)])
def test_all_to_all_over_a_fat_tree(oversubscription, expected_s):
    cluster = small_units(oversubscription)
    paths = [rail_path(cluster, *pair) for pair in permutations(range(32), 2)]
    assert slowest_s(cluster.graph(), paths, 1e6) == pytest.approx(expected_s)
    inner, leaf, spine = cluster.levels
    by_levels = max(
        7e6 / inner.bandwidth_bytes_per_s,
        (32 - inner.size) * 1e6 / leaf.bandwidth_bytes_per_s,
        (32 - leaf.size) * 1e6 / spine.bandwidth_bytes_per_s,
    )
    assert by_levels == pytest.approx(expected_s)


def test_all_to_all_over_a_mesh_uses_one_link_for_each_peer():
    cluster = build_cluster("atlas-910b", "single-node", 8, HERE)
    graph = cluster.graph()
    assert graph.number_of_edges() == 56
    paths = nx.all_pairs_shortest_path(graph)
    hops = [path for _, reached in paths for path in reached.values()]
    level = cluster.levels[0]
    assert slowest_s(graph, hops, 1e6) == pytest.approx(1e6 / 28e9)
    assert slowest_s(graph, hops, 1e6) == pytest.approx(7e6 / level.bandwidth_bytes_per_s)


def test_all_to_all_over_a_super_node_is_bound_by_each_accelerators_own_links():
    cluster = build_cluster("cloudmatrix-910c", "single-node", 16, HERE)
    graph = cluster.graph()
    ends = [("accelerator", rank) for rank in range(16)]
    paths = [nx.shortest_path(graph, *pair) for pair in permutations(ends, 2)]
    assert slowest_s(graph, paths, 1e6) == pytest.approx(15e6 / 392e9)
    between = [path for path in paths if len(path) == 5]
    assert slowest_s(graph, between, 1e6) == pytest.approx(8e6 / 380e9)


@pytest.mark.parametrize(
    ("node", "fabric", "accelerators"),
    [
        ("hgx-h200", "rail-fat-tree-400g", 16),
        ("cloudmatrix-910c", "single-node", 16),
        ("atlas-910b", "rail-fat-tree-200g-roce", 16),
    ],
)
def test_the_latency_of_a_path_is_that_of_the_level_it_turns_in(node, fabric, accelerators):
    cluster = build_cluster(node, fabric, accelerators, HERE)
    graph = cluster.graph()
    for target in (1, 8):
        latency_s = nx.shortest_path_length(graph, ("accelerator", 0), ("accelerator", target), weight="latency_s")
        assert latency_s == pytest.approx(cluster.spanning([0, target]).latency_s)


def test_latency_through_the_spine():
    cluster = small_units(1.0)
    path = rail_path(cluster, 0, 16)
    latency_s = sum(cluster.graph().edges[edge]["latency_s"] for edge in pairwise(path))
    assert latency_s == pytest.approx(cluster.levels[2].latency_s)


def test_every_link_runs_both_ways_with_its_own_capacity():
    graph = small_units(2.0).graph()
    for one, other, link in graph.edges(data=True):
        assert link == graph.edges[other, one]
        assert link["capacity_bytes_per_s"] > 0
        assert link["latency_s"] > 0
