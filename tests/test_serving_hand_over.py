from pathlib import Path

import pytest
import simpy

from simulator.forecast.serving.hand_over import HandOver, send_ns
from simulator.forecast.serving.requests import Request
from simulator.forecast.serving.sequence import Sequence
from simulator.hardware.library import build_cluster
from simulator.model.serving.held import CacheNeed
from simulator.program.sends import BETWEEN_NODES_S

CLUSTER = build_cluster("hgx-h200", "rail-fat-tree-400g", 16, Path())


def test_a_cache_goes_through_the_port_of_its_accelerator() -> None:
    far = CLUSTER.levels[-1]
    # A gigabyte at 50 GB/s of a port, of which large transfers attain a share.
    expected = 1e9 / (50e9 * far.share) + BETWEEN_NODES_S + far.latency_s
    assert send_ns(CLUSTER, 1e9) / 1e9 == pytest.approx(expected)


def test_a_rank_sends_one_cache_after_the_other() -> None:
    env, arrived = simpy.Environment(), []
    way = HandOver(
        env,
        CLUSTER,
        [CacheNeed(token_bytes=1e6), CacheNeed(token_bytes=5e5)],
        1,
        lambda sequence: arrived.append(env.now),
    )
    for _ in range(3):
        way.send(Sequence(Request(0, 1000, 10), 0))
    env.run()
    each = send_ns(CLUSTER, 1e9)
    assert arrived == [each, 2 * each, 3 * each]
    assert way.sent_bytes == 3e9


def test_the_larger_part_of_a_cache_goes_through_one_port() -> None:
    env, arrived = simpy.Environment(), []
    # Eight ranks have computed an eighth each, and one will have all of it.
    parts = [CacheNeed(token_bytes=8e5), CacheNeed(token_bytes=1e5)]
    way = HandOver(env, CLUSTER, parts, 1, lambda sequence: arrived.append(env.now))
    way.send(Sequence(Request(0, 1000, 10), 0))
    env.run()
    assert arrived == [send_ns(CLUSTER, 8e8)]
    assert way.sent_bytes == 8e8
