from pathlib import Path

import numpy as np
import pytest

from simulator.engine.interference import lost_ns
from simulator.engine.simulation import Part, Simulation
from simulator.engine.task import Task
from simulator.hardware.library import build_cluster
from simulator.program.emitter import Emitter
from simulator.program.host_memory import COPY_IN, COPY_OUT, CORES, HostMemory, host_memory, pinned

HERE = Path()
LATENCY_NS = 6000
GB = 1e9


def host(node: str = "hgx-h200", cards: int = 1, behaviours: int = 1) -> HostMemory:
    return HostMemory(build_cluster(node, "single-node", cards, HERE), behaviours)


def test_a_pinned_copy_takes_its_link_and_its_latency() -> None:
    assert host().out(5.506e9).duration_ns.tolist() == [100_000_000 + LATENCY_NS]
    assert host().into(5.543e9).duration_ns.tolist() == [100_000_000 + LATENCY_NS]
    assert host().out(0.0).duration_ns.tolist() == [0]


def test_pageable_memory_goes_the_driver_s_way() -> None:
    assert host().out(1.38e9, pinned=False).duration_ns.tolist() == [100_000_000 + LATENCY_NS]
    assert host().into(0.66e9, pinned=False).duration_ns.tolist() == [100_000_000 + LATENCY_NS]


def test_eight_cards_share_the_memory_of_their_node() -> None:
    # 614 GB/s x 0.8 / 8 = 61.4 GB/s a card: one way fits, both ways do not.
    busy = host(cards=8).out(5.506e9).collective.link_busy_ns
    assert busy["host link copy_out"] == pytest.approx(1e8)
    assert busy["host memory"] == pytest.approx(5.506 / 61.4 * 1e9)
    # A card of GB200 could take 377 GB/s; four of them on 819.2 GB/s get 204.8.
    assert host("gb200-nvl72", 4).out(20.48e9).duration_ns.tolist() == [100_000_000 + LATENCY_NS]


def test_behaviours_copy_what_is_theirs() -> None:
    found = host(behaviours=2).out(np.array([5.506e9, 0.0]))
    assert found.duration_ns.tolist() == [100_000_000 + LATENCY_NS, 0]
    assert found.collective.groups.tolist() == [0, 1]


def test_a_sweep_shares_the_memory_with_the_other_cards() -> None:
    assert host(cards=8).sweep("cpu_optimizer", 6.14e9, threads=12).duration_ns.tolist() == [100_000_000]


def test_few_cores_do_not_fill_the_memory() -> None:
    assert host(cards=8).sweep("cpu_optimizer", 1.86e9, threads=1).duration_ns.tolist() == [100_000_000]
    assert host(cards=8).sweep("cpu_optimizer", 3.72e9, threads=2).duration_ns.tolist() == [100_000_000]


def test_what_one_thread_pinned_is_in_one_of_the_node_s_domains() -> None:
    # 410 GB/s x 0.8 / 8 domains = 41 GB/s; 32 of 128 cores span two domains, which share what is not pinned.
    memory = host("dgx-a100-40g", cards=2)
    assert memory.sweep("cpu_pass", 4.1e9, threads=32, near=4.1e9).duration_ns.tolist() == [100_000_000]
    assert memory.sweep("cpu_pass", 4.1e9, threads=32, near=2.05e9).duration_ns.tolist() == [75_000_000]
    # The others of the eight domains stay idle where nothing is pinned, too.
    assert memory.sweep("cpu_pass", 4.1e9, threads=32).duration_ns.tolist() == [50_000_000]
    assert memory.sweep("cpu_pass", 4.1e9, threads=64).duration_ns.tolist() == [25_000_000]
    # Eight cards keep all domains busy anyway: 41 GB/s each.
    full = host("dgx-a100-40g", cards=8)
    assert full.sweep("cpu_pass", 4.1e9, threads=16, near=4.1e9).duration_ns.tolist() == [100_000_000]
    assert full.sweep("cpu_pass", 4.1e9, threads=16).duration_ns.tolist() == [100_000_000]


def both_ways(bytes_out: float, bytes_in: float) -> list[int]:
    memory, emitter = host(), Emitter(0)
    emitter.transfer("out", COPY_OUT, COPY_OUT, memory.out(bytes_out), deps=())
    emitter.transfer("in", COPY_IN, COPY_IN, memory.into(bytes_in), deps=())
    (found,) = Simulation(Part(emitter.tasks, 1)).run()
    return found.end_ns[:, 0].tolist()


def test_both_directions_at_once_get_less_than_their_sum() -> None:
    # 55.06 + 55.43 GB/s are more than the 99.1 that both attain: each runs at 99.1 / 110.49 of its speed.
    out, into = both_ways(5.506e9, 5.543e9)
    assert out == pytest.approx(1e8 * 110.49 / 99.1, rel=1e-3)
    assert into == pytest.approx(1e8 * 110.49 / 99.1, rel=1e-3)


def test_cores_and_copies_share_the_memory() -> None:
    # The sweep alone fills the memory. One card's copy asks 55.06 of 491.2 GB/s: each goes at 1 / 1.112 of its speed.
    memory, emitter = host(), Emitter(0)
    emitter.transfer("sweep", CORES, "cpu_optimizer", memory.sweep("cpu_optimizer", 49.12e9, threads=96), deps=())
    emitter.transfer("out", COPY_OUT, COPY_OUT, memory.out(5.506e9), deps=())
    (found,) = Simulation(Part(emitter.tasks, 1)).run()
    assert found.end_ns[1, 0] == pytest.approx(1e8 * (1 + 55.06 / 491.2), rel=1e-3)


def test_a_copy_takes_nothing_from_compute() -> None:
    memory, emitter = host(), Emitter(0)
    emitter.transfer("out", COPY_OUT, COPY_OUT, memory.out(5.506e9), deps=())
    program = [*emitter.tasks, Task("work", "compute", "gemm", 50_000_000)]
    (found,) = Simulation(Part(program, 1)).run()
    assert lost_ns(program, found) is None


def test_pinned_tensors_take_powers_of_two() -> None:
    taken = pinned("x", "saved activations", [3.0 * 2**20, 2.0**22, 0.0])
    assert (taken.bytes, taken.tier) == (2.0**22 + 2.0**22, "ddr")
    assert pinned("y", "optimizer", [np.array([5.0, 8.0, 0.0])]).bytes.tolist() == [8.0, 8.0, 0.0]
    assert host_memory("z", "optimizer", [3.0, 5.0]).bytes == 8.0
