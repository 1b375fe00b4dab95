import numpy as np
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.engine.task import Allocation
from simulator.forecast.assembly import assemble_job
from simulator.forecast.memory import remember
from simulator.forecast.node_memory import fullest_nodes
from simulator.hardware.library import build_cluster
from simulator.parallel.folding import Folding

TB = 1e12


def holding(small: Small, host_bytes: float):
    read = small("dense")
    program, job = lower(read), assemble_job(*read)
    program.resident.append(Allocation("mine", "optimizer", host_bytes, tier="ddr"))
    return remember([program], job.cluster, job.folding)


def test_the_cards_of_a_node_add_up(small: Small) -> None:
    memory = holding(small, 100e9)
    node = memory.nodes["ddr"]
    assert (node.cards, node.peak_bytes, node.capacity_bytes) == (8, 0.8 * TB, 1.536 * TB)
    assert memory.verdict == "fits"
    block = memory.summary()["ddr"]
    assert block["peak_bytes"] == 100e9
    assert block["node"] == {"number": 0, "cards": 8, "peak_bytes": 0.8 * TB, "capacity_bytes": 1.536 * TB}


def test_more_than_the_node_has_does_not_fit(small: Small) -> None:
    memory = holding(small, 200e9)
    assert memory.nodes["ddr"].excess_bytes == 1.6 * TB - 1.536 * TB
    assert memory.verdict == "does not fit"


def test_the_fullest_node_is_told_though_no_card_of_it_holds_most(tmp_path) -> None:
    # 16 cards: rank 0 holds 9, the eight of the second node 4 each.
    cluster = build_cluster("hgx-h200", "rail-fat-tree-400g", 16, tmp_path)
    behaviour = np.array([0, *[1] * 7, *[2] * 8])
    folding = Folding(behaviour, np.array([0, 1, 8]), np.array([1, 7, 8]), {})
    ledgers = account([], [Allocation("a", "optimizer", np.array([9.0, 0.0, 4.0]), tier="ddr")], 3)
    node = fullest_nodes([ledgers], cluster, folding)["ddr"]
    assert (node.number, node.peak_bytes) == (1, 32.0)


def test_a_tier_that_nobody_uses_is_not_told(small: Small) -> None:
    assert holding(small, 0.0).nodes == {}
