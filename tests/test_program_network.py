from pathlib import Path

import numpy as np
import pytest

from simulator.hardware.cluster import Cluster, assemble
from simulator.hardware.library import load_accelerator, load_fabric, load_node
from simulator.model.operator import Collective as LayerCollective
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.program.exchanges import exchanges
from simulator.program.network import Network

HERE = Path()
NVLINK, PORT = 450e9, 50e9


def cluster(accelerators: int, *, measured: bool = False) -> Cluster:
    """H200 nodes; unless *measured*, with collectives that reach all of the NVLink rate at one latency."""
    node = load_node("hgx-h200", HERE)
    if not measured:
        node = node.model_copy(update={"scale_up": node.scale_up.model_copy(update={"collectives": {}})})
    return assemble(node, load_accelerator("h200-sxm", HERE), load_fabric("rail-fat-tree-400g", HERE), accelerators)


def network(mesh: Mesh, hardware: Cluster) -> Network:
    sizes = [level.size for level in hardware.levels]
    return Network(hardware, Placement(mesh, apart(mesh.groups(), mesh.ranks), sizes), mesh)


def card_links(sent_bytes: float) -> dict[str, float]:
    """Nanoseconds on the link of a card, over which what its port sends goes as copies do: 55.06 GB/s out, 55.43 in,
    and both ways at once the port's own 2 x 50, which is more than copies reach together.
    """
    links = {"host link copy_out": 1 / 55.06, "host link copy_in": 1 / 55.43, "host link": 2 / 100}
    return {link: sent_bytes * ns for link, ns in links.items()}


def test_a_ring_inside_a_node_by_hand() -> None:
    transfer = network(Mesh(dp_shard=8), cluster(8)).ring("all_gather", "dp_shard", 800e6)
    assert transfer is not None
    seconds = 700e6 / NVLINK + 2e-6
    assert set(transfer.duration_ns.tolist()) == {int(np.ceil(seconds * 1e9))}
    assert transfer.collective.link_busy_ns == pytest.approx({"scale_up": 700e6 / NVLINK * 1e9})
    assert np.asarray(transfer.collective.wire_bytes).tolist() == [700e6] * 8


def test_a_ring_over_two_nodes_is_as_slow_as_its_ports() -> None:
    hardware = cluster(16)
    leaf = hardware.levels[1]
    transfer = network(Mesh(dp_shard=16), hardware).ring("all_gather", "dp_shard", 1600e6)
    assert transfer is not None
    # 1500 MB pass each member; a port carries an eighth of them at 97 % of 50 GB/s, and NVLink all at 450 GB/s.
    port_s = 1500e6 / 8 / (0.97 * PORT)
    assert port_s > 1500e6 / NVLINK
    # NCCL's start, 14 steps over NVLink and one over the network, of the Simple protocol.
    latency_s = 8.4e-6 + 14 * 3.4e-6 + 14e-6 + leaf.latency_s
    assert transfer.algorithms == ("ring Simple",)
    assert set(transfer.duration_ns.tolist()) == {int(np.ceil((port_s + latency_s) * 1e9))}
    busy = {"scale_up": 1500e6 / NVLINK * 1e9, "leaf": port_s * 1e9}
    assert transfer.collective.link_busy_ns == pytest.approx(busy | card_links(1500e6 / 8))


def test_an_all_reduce_passes_its_buffer_twice() -> None:
    ways = network(Mesh(dp_replicate=8), cluster(8))
    once, twice = ways.ring("reduce_scatter", "dp_replicate", 800e6), ways.ring("all_reduce", "dp_replicate", 800e6)
    assert once is not None
    assert twice is not None
    assert twice.collective.link_busy_ns["scale_up"] == 2 * once.collective.link_busy_ns["scale_up"]
    assert np.array_equal(twice.collective.wire_bytes, 2 * np.asarray(once.collective.wire_bytes))


def test_a_group_of_one_has_nothing_to_send() -> None:
    ways = network(Mesh(dp_shard=8, ep=8), cluster(8))
    assert ways.ring("all_gather", "efsdp", 1e9) is None
    assert network(Mesh(dp_shard=8), cluster(8)).exchange(np.array([[5e6]])) is None


def test_an_exchange_lasts_as_long_as_the_hottest_port_for_everyone() -> None:
    sent = np.zeros((8, 8))
    sent[:, 3] = 90e6
    transfer = network(Mesh(dp_shard=8, ep=8), cluster(8)).exchange(sent)
    assert transfer is not None
    # Seven others send 90 MB each to rank 3, all one way, where ports that send as much beside it take a quarter more;
    # what it sends to itself loads no link.
    assert set(transfer.duration_ns.tolist()) == {int(np.ceil((630e6 / 1.25 / NVLINK + 2e-6) * 1e9))}
    assert np.asarray(transfer.collective.wire_bytes).tolist() == [90e6, 90e6, 90e6, 0, 90e6, 90e6, 90e6, 90e6]


def test_rows_that_ports_write_by_themselves_go_at_their_own_rate_after_their_own_start() -> None:
    sent = np.full((16, 16), 1e6)
    ways = network(Mesh(dp_shard=16, ep=16), cluster(16))
    plain, written = ways.exchange(sent), ways.exchange(sent, exchanges()["low_latency"])
    assert plain is not None
    assert written is not None
    # 8 MB leave each rank's port, at 0.91 of its rate, 22.8 us after the launch; no channel takes compute meanwhile.
    assert set(written.duration_ns.tolist()) == {int(np.ceil((8e6 / (0.91 * PORT) + 22.8e-6) * 1e9))}
    assert written.collective.link_busy_ns["scale_up"] == plain.collective.link_busy_ns["scale_up"]
    assert not np.any(written.collective.compute_taken)
    assert np.asarray(plain.collective.compute_taken).tolist() == pytest.approx([16 / 132] * 16)


def test_an_even_exchange_loads_each_level_with_what_goes_that_far() -> None:
    # 16 ranks of two nodes: of 16 parts of 10 MB, one stays, 7 go to ranks of the own node and 8 to the other.
    hardware = cluster(16)
    asked = LayerCollective("all_to_all", "cp", 160e6)
    transfer = network(Mesh(cp=16), hardware).collective(asked, 160e6)
    assert transfer is not None
    port_s, leaf = 80e6 / (0.86 * PORT), hardware.levels[1]
    assert set(transfer.duration_ns.tolist()) == {int(np.ceil((port_s + 2e-6 + leaf.latency_s) * 1e9))}
    assert transfer.collective.link_busy_ns == pytest.approx(
        {"scale_up": 70e6 / NVLINK * 1e9, "leaf": port_s * 1e9} | card_links(80e6)
    )
    assert np.asarray(transfer.collective.wire_bytes).tolist() == [150e6] * 16
    assert network(Mesh(dp_shard=8), cluster(8)).collective(asked, 160e6) is None


def test_groups_take_their_own_time() -> None:
    # Of 16 ranks, "ep" groups of 8 fill a node each; "efsdp" pairs lie across both.
    ways = network(Mesh(dp_shard=16, ep=8), cluster(16))
    pairs, inside = ways.ring("all_gather", "efsdp", 1e9), ways.exchange(np.full((8, 8), 1e6))
    assert pairs is not None
    assert inside is not None
    assert pairs.collective.link_busy_ns == pytest.approx({"leaf": 0.5e9 / (0.97 * PORT) * 1e9} | card_links(0.5e9))
    assert inside.collective.link_busy_ns == pytest.approx({"scale_up": 7e6 / NVLINK * 1e9})
    assert pairs.collective.groups.tolist() == list(range(8)) * 2
    assert inside.collective.groups.tolist() == [0] * 8 + [1] * 8


def test_a_price_is_graded_by_the_link_that_decides() -> None:
    ways = network(Mesh(dp_shard=16, ep=8), cluster(16, measured=True))
    pairs, inside = ways.ring("all_gather", "efsdp", 1e9), ways.exchange(np.full((8, 8), 1e6))
    assert pairs is not None
    assert inside is not None
    assert (pairs.grade, inside.grade) == ("scaled", "measured")


def test_more_bytes_never_take_less_time_nor_measured_links_less_than_ideal_ones() -> None:
    ideal, measured = (network(Mesh(dp_shard=8), cluster(8, measured=kind)) for kind in (False, True))
    # Below a megabyte the timings rise and fall by their noise.
    before = 0
    for size in np.geomspace(1e6, 1e10, 30):
        slow, fast = measured.ring("all_gather", "dp_shard", size), ideal.ring("all_gather", "dp_shard", size)
        assert slow is not None
        assert fast is not None
        assert slow.duration_ns[0] >= before
        before = int(slow.duration_ns[0])
        if size > 1e7:
            assert slow.duration_ns[0] > fast.duration_ns[0]
