"""An uneven all-to-all of 128 ranks: the price of a forecast beside every flow followed on its own, max-min fair.

Off by default; run with `pytest tests/benchmarks --benchmark-only`. Rows go to seven experts a rank with lognormal
popularity (sigma 1), 16 nodes of 8 H200 with a port each. A flow uses the port that sends and the port that receives,
NVLink's inside a node. The eight sources of a node have alike flows to every rank outside it, so these go as one.
"""

import numpy as np
import numpy.typing as npt
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from simulator.hardware.library import build_cluster
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.program.network import Network
from simulator.shipped import shipped

RANKS, NODE = 128, 8
ROW_BYTES, ROWS = 2 * 7168, 8192 * 8
Array = npt.NDArray[np.float64]


def received_bytes() -> Array:
    """From each source, by destination."""
    popularity = np.random.default_rng(7).lognormal(0.0, 1.0, (RANKS, 7)).sum(axis=1)
    return np.asarray(popularity / popularity.sum() * ROWS * ROW_BYTES)


def makespan_s(sizes: Array, weights: Array, ports: npt.NDArray[np.int64], shares: Array, rates: Array) -> float:
    """Until all flows have ended; flow i counts for *weights* [i] at ports [0, i], and so on.

    *shares* [2, i] of those flows lie at one port: a sender has one of the flows that go as one, a receiver all.
    """
    left, clock = sizes.copy(), 0.0
    while (left > 0).any():
        speed = filled(left > 0, shares * weights, ports, rates)
        step = (left[left > 0] / speed[left > 0]).min()
        left = np.where(left > step * speed * (1 + 1e-12), left - step * speed, 0.0)
        clock += step
    return clock


def filled(active: npt.NDArray[np.bool_], used: Array, ports: npt.NDArray[np.int64], rates: Array) -> Array:
    """Max-min fair speeds: the port with least for each of its flows freezes them, then the next one."""
    speed, rest, waiting = np.zeros(active.size), rates.copy(), active.copy()
    while waiting.any():
        wanted = sum(np.bincount(ports[end], used[end] * waiting, rates.size) for end in range(2))
        each = np.divide(rest, wanted, out=np.full(rates.size, np.inf), where=wanted > 0)
        level = each.min()
        tight = each <= level * (1 + 1e-12)
        frozen = waiting & (tight[ports[0]] | tight[ports[1]])
        speed[frozen] = level
        for end in range(2):
            rest -= np.bincount(ports[end], used[end] * frozen * level, rates.size)
        waiting &= ~frozen
    return speed


def between_nodes_s(bytes_to: Array, rate: float) -> float:
    source, target = (grid.ravel() for grid in np.meshgrid(np.arange(RANKS // NODE), np.arange(RANKS), indexing="ij"))
    away = source != target // NODE
    source, target = source[away], target[away]
    ports = np.stack([source, RANKS // NODE + target])
    shares = np.stack([np.full(source.size, 1 / NODE), np.ones(source.size)])
    return makespan_s(bytes_to[target], np.full(source.size, NODE), ports, shares, np.full(RANKS * 2, rate))


def inside_nodes_s(bytes_to: Array, rate: float) -> float:
    source, target = (grid.ravel() for grid in np.meshgrid(np.arange(RANKS), np.arange(RANKS), indexing="ij"))
    here = (source // NODE == target // NODE) & (source != target)
    ports = np.stack([source[here], RANKS + target[here]])
    once = np.ones(ports.shape)
    return makespan_s(bytes_to[target[here]], once[0], ports, once, np.full(2 * RANKS, rate))


@pytest.mark.benchmark(group="exchange")
def test_price_beside_every_flow(benchmark: BenchmarkFixture) -> None:
    cluster = build_cluster("hgx-h200", "rail-fat-tree-400g", RANKS, shipped("scenarios"))
    mesh = Mesh(dp_shard=RANKS, ep=RANKS)
    placement = Placement(mesh, apart(mesh.groups(), RANKS), [level.size for level in cluster.levels])
    network, bytes_to = Network(cluster, placement, mesh), received_bytes()
    transfer = benchmark(network.exchange, np.broadcast_to(bytes_to, (RANKS, RANKS)))
    busy_ns = transfer.collective.link_busy_ns
    nvlink, leaf = cluster.levels[0], cluster.levels[1]
    exact = {
        nvlink.name: inside_nodes_s(bytes_to, nvlink.bandwidth_bytes_per_s * nvlink.share),
        leaf.name: between_nodes_s(bytes_to, leaf.bandwidth_bytes_per_s * leaf.share),
    }
    for name, seconds in exact.items():
        benchmark.extra_info[f"{name}: price over exact"] = busy_ns[name] / 1e9 / seconds
    assert busy_ns[leaf.name] / 1e9 == pytest.approx(exact[leaf.name], rel=0.01)
