from pathlib import Path

import numpy as np
import pytest

from simulator.engine.simulation import Part, Simulation
from simulator.hardware.library import build_cluster
from simulator.program.drives import DRIVE_READ, DRIVE_WRITE, Drives
from simulator.program.emitter import Emitter
from simulator.program.host_memory import COPY_IN, HostMemory
from simulator.program.offload import OnDrives

READ_NS, WRITE_NS = 100_000, 21_000
"""Latencies of the drives of hgx-h200; all eight of them read 55.6 GB/s and write 33.9 GB/s."""


def drives(cards: int = 8, block: float = 2**20, depth: int = 64) -> tuple[Drives, HostMemory]:
    cluster = build_cluster("hgx-h200", "single-node", cards, Path())
    host = HostMemory(cluster, 1)
    return Drives(cluster, host, OnDrives(1.0, 10**9, False, False, False, block, depth)), host


def test_the_cards_of_a_node_share_its_drives() -> None:
    # 8 x 0.695 GB at 55.6 GB/s, 8 x 0.33900 at 33.9.
    assert drives()[0].read(0.695e9).duration_ns.tolist() == [100_000_000 + READ_NS]
    assert drives()[0].write(0.339e9).duration_ns.tolist() == [80_000_000 + WRITE_NS]
    assert drives()[0].read(0.0).duration_ns.tolist() == [0]


def test_one_process_has_few_requests_under_way() -> None:
    # A request of 1 MiB: 100 us and 1,048,576 B at 6.95 GB/s, 250.874 us; 8 at a time are 33.4 GB/s of 55.6.
    alone = drives(cards=1, depth=8)[0].read(8 * 2**20 * 100)
    assert alone.duration_ns.tolist() == [pytest.approx(25_087_400 + READ_NS, rel=1e-5)]
    # Small requests: 4 KiB in 100.589 us, four under way.
    small = drives(cards=1, block=4096, depth=4)[0].read(4 * 4096 * 1000)
    assert small.duration_ns.tolist() == [pytest.approx(100_589_353 + READ_NS, rel=1e-6)]


def test_deep_queues_take_the_rate_of_all_drives() -> None:
    assert drives(cards=1, depth=64)[0].read(5.56e9).duration_ns.tolist() == [100_000_000 + READ_NS]


def test_what_is_staged_passes_host_memory_and_what_is_direct_the_card_s_link() -> None:
    staged = drives()[0].read(0.695e9).collective.link_busy_ns
    assert staged == {"drives": pytest.approx(1e8), "host memory": pytest.approx(8 * 0.695 / 491.2 * 1e9)}
    direct = drives()[0].read_to_card(0.695e9).collective.link_busy_ns
    assert direct == {
        "drives": pytest.approx(1e8),
        "host link copy_in": pytest.approx(0.695 / 55.43 * 1e9),
        "host link": pytest.approx(0.695 / 99.1 * 1e9),
    }


def test_one_card_alone_reads_directly_as_fast_as_its_link() -> None:
    # Drives of 55.6 GB/s behind a link of 55.43.
    assert drives(cards=1)[0].read_to_card(5.543e9).duration_ns.tolist() == [100_000_000 + READ_NS]


def test_reads_and_writes_take_each_other_s_time() -> None:
    found, _ = drives()
    emitter = Emitter(0)
    emitter.transfer("read", DRIVE_READ, DRIVE_READ, found.read(0.695e9), deps=())
    emitter.transfer("write", DRIVE_WRITE, DRIVE_WRITE, found.write(0.42375e9), deps=())
    (ran,) = Simulation(Part(emitter.tasks, 1)).run()
    # 100 ms each alone: 200 ms both, but for latencies, in which drives do nothing.
    assert ran.end_ns[:, 0].tolist() == pytest.approx([200e6, 200e6], rel=2e-3)


def test_direct_reads_and_copies_share_the_link() -> None:
    found, host = drives(cards=1)
    emitter = Emitter(0)
    emitter.transfer("shards", DRIVE_READ, DRIVE_READ, found.read_to_card(5.543e9), deps=())
    emitter.transfer("in", COPY_IN, COPY_IN, host.into(5.543e9), deps=())
    (ran,) = Simulation(Part(emitter.tasks, 1)).run()
    assert ran.end_ns[:, 0].tolist() == pytest.approx([200e6, 200e6], rel=2e-3)


def test_behaviours_read_what_is_theirs() -> None:
    cluster = build_cluster("hgx-h200", "single-node", 8, Path())
    found = Drives(cluster, HostMemory(cluster, 2), OnDrives(1.0, 1, False, False, False, 2**20, 64))
    assert found.read(np.array([0.695e9, 0.0])).duration_ns.tolist() == [100_000_000 + READ_NS, 0]


def test_a_published_rate_of_the_same_drives_is_lower() -> None:
    # DeepSpeed's DeepNVMe read 48 GB/s of the eight drives of an ND H200 v5 to its cards (blog of June 2025); FIO read
    # 55.6 GB/s of the same machine's.
    size = 8e9
    seconds = float(drives()[0].read_to_card(size).duration_ns[0]) / 1e9
    assert 8 * size / seconds / 48e9 - 1 == pytest.approx(0.16, abs=0.005)
