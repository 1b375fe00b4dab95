"""Algorithms between nodes, by hand: what NCCL's own table of latencies and protocols says."""

from pathlib import Path

import numpy as np
import pytest

from simulator.hardware.library import build_cluster
from simulator.parallel.placement import Spread
from simulator.program.algorithms import Group, algorithms, soonest
from simulator.program.alone import alone_s

MIB = 2**20


def group(operation="all_reduce", size=64, inside=8, message=8e6, *, switch_reduces=True):
    within = np.array([[inside], [size]])
    spread = Spread(np.array([size]), within)
    return Group(operation, np.array([message]), spread, np.array([inside]), 1, np.array([2e-6]), True, switch_reduces)


def course(name, asked):
    return next(one for courses in algorithms().values() for one in courses(asked) if one.name == name)


def test_every_algorithm_is_found_by_its_name():
    assert set(algorithms()) == {"ring", "tree", "nvls", "pat"}


def test_a_ring_makes_most_of_its_steps_inside_nodes():
    ring = course("ring LL", group())
    # 2 x 63 steps, 2 x 7 of them between nodes; those inside wait for the host to post, 1 us each.
    assert ring.latency_s[0] == pytest.approx(6.6e-6 + 112 * 1e-6 + 14 * (2.7e-6 + 2e-6))
    assert ring.loads[:, 0] == pytest.approx([8e6 * 126 / 64, 8e6 * 126 / 64 / 8])


def test_a_tree_is_as_deep_as_the_logarithm_of_the_nodes_and_passes_the_whole_buffer_twice():
    tree = course("tree Simple", group())
    assert tree.latency_s[0] == pytest.approx(8.4e-6 + 2 * (7 * 4e-6 + 3 * (14e-6 + 2e-6)))
    assert tree.loads[:, 0] == pytest.approx([16e6, 2e6])


def test_switches_reduce_inside_and_two_nodes_swap():
    two, eight = course("nvls", group(size=16)), course("nvls", group())
    assert two.loads[:, 0] == pytest.approx([2 * 8e6 * 7 / 8, 1e6])
    assert eight.loads[:, 0] == pytest.approx([2 * 8e6 * 7 / 8, 2e6])
    assert eight.latency_s[0] == pytest.approx(25e-6 + 6 * 16e-6)
    assert not any(one.name == "nvls" for one in algorithms()["nvls"](group(switch_reduces=False)))


def test_only_a_ring_or_pat_gathers_and_pat_only_with_one_member_a_node():
    names = {one.name for courses in algorithms().values() for one in courses(group("all_gather"))}
    assert names == {"ring LL", "ring LL128", "ring Simple", "pat"}
    assert not course("pat", group("all_gather")).valid[0]
    assert course("pat", group("all_gather", size=8, inside=1)).valid[0]


@pytest.mark.parametrize(("message", "name"), [(1e3, "tree LL"), (4e6, "tree LL128"), (1e10, "ring Simple")])
def test_size_decides_protocol_and_algorithm(message, name):
    rates = np.array([[350e9], [48e9]])
    assert soonest(group(message=message, switch_reduces=False), rates, None).names[0] == name


def test_a_low_latency_protocol_is_bound_by_what_it_moves():
    ring = course("ring LL", group(size=64, message=1e9))
    assert ring.least_s(group(message=1e9))[0] == pytest.approx(1e9 * 126 / 64 / 20.4e9)


def test_inside_a_node_the_library_has_chosen_already():
    seconds, taken = alone_s(build_cluster("hgx-h200", "single-node", 8, Path()), "all_reduce", 8, 512 * MIB)
    assert taken == ("timed",)
    assert seconds == pytest.approx(2040.31e-6, rel=1e-4)


def test_64_h100_reduce_as_fast_as_measured():
    cluster = build_cluster("hgx-h100", "rail-fat-tree-400g", 64, Path())
    # CoreWeave: 2985 us for 512 MiB, 43980 us for 8 GiB.
    assert alone_s(cluster, "all_reduce", 64, 512 * MIB)[0] == pytest.approx(2985e-6, rel=0.05)
    assert alone_s(cluster, "all_reduce", 64, 8192 * MIB)[0] == pytest.approx(43980e-6, rel=0.02)
