"""Slow links and dead rails by hand: 16 H200 on two nodes, NVLink 450 GB/s, ports of 50 GB/s."""

from pathlib import Path

import pytest

from simulator.hardware.degraded import degrade
from simulator.hardware.library import build_cluster
from simulator.program.alone import alone_s


@pytest.fixture(scope="module")
def whole():
    return build_cluster("hgx-h200", "rail-fat-tree-400g", 16, Path())


def rates(cluster):
    return {level.name: level.bandwidth_bytes_per_s / 1e9 for level in cluster.levels}


def test_a_whole_cluster_stays_as_it_is(whole):
    assert degrade(whole, {}, 0, {}) == whole


def test_one_slow_link_slows_its_level(whole):
    assert rates(degrade(whole, {"leaf": 0.5}, 0, {})) == {"scale_up": 450, "leaf": 25}
    assert rates(degrade(whole, {"scale_up": 0.9}, 0, {})) == {"scale_up": 405, "leaf": 50}


def test_ports_of_a_node_carry_the_traffic_of_its_dead_ones(whole):
    assert rates(degrade(whole, {"leaf": 0.5}, 2, {})) == {"scale_up": 450, "leaf": 25 * 6 / 8}


def test_a_gather_waits_for_the_ring_through_the_slow_port(whole):
    seconds, _ = alone_s(degrade(whole, {"leaf": 0.25}, 0, {}), "all_gather", 16, 16e9)
    assert seconds == pytest.approx(15e9 / 8 / (0.25 * 0.97 * 50e9), rel=0.01)


def test_what_is_not_there_cannot_be_degraded(whole):
    with pytest.raises(ValueError, match="links: 16 accelerators reach no spine; allowed: scale_up, leaf"):
        degrade(whole, {"spine": 0.5}, 0, {})
    with pytest.raises(ValueError, match="a node has 8 rails, 8 dead leave none; nearest valid: 7"):
        degrade(whole, {}, 8, {})
    with pytest.raises(ValueError, match="8 accelerators use no rails"):
        degrade(build_cluster("hgx-h200", "rail-fat-tree-400g", 8, Path()), {}, 1, {})
