"""What an exchange keeps busy at least: two nodes of eight H200, two experts a rank, two choices a token, by hand."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from simulator.hardware.library import build_cluster
from simulator.parallel.mesh import Mesh
from simulator.planner.exchange import Exchange
from simulator.program.exchanges import mixes_of
from simulator.routing.coverage import Choice

EVEN = np.full((1, 16, 2), 16)
"""Rows of 32 experts in one layer: 16 each are 512 rows, of 256 tokens, 16 from each rank."""
RANK = 1 - (30 * 29) / (32 * 31)
NODE = 1 - (16 * 15) / (32 * 31)


@pytest.mark.parametrize(
    ("way", "rows"),
    [("all_to_all", 8 * 2.0), ("deduplicated", 8 * 16 * RANK), ("hierarchical", 16 * NODE)],
)
def test_rows_through_the_busiest_port(way: str, rows: float) -> None:
    cluster = build_cluster("hgx-h200", "rail-fat-tree-400g", 16, Path())
    busy_s = Exchange(cluster, Mesh(dp_shard=16, ep=16), way).busy_s(EVEN, partial(mixes_of, EVEN, Choice(2)))
    port = cluster.levels[1]
    rate = port.bandwidth_bytes_per_s * max(port.share, port.ring_share)
    assert busy_s[1, 0] == pytest.approx(rows / rate)


def test_groups_that_lie_unevenly_are_left_out() -> None:
    cluster = build_cluster("hgx-h200", "rail-fat-tree-400g", 24, Path())
    exchange = Exchange(cluster, Mesh(dp_shard=24, ep=12), "hierarchical")
    assert not exchange.busy_s(EVEN, partial(mixes_of, EVEN, Choice(2))).any()
