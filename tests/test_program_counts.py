"""What ranks tell each other before rows go to experts: 16 ranks of two H200 nodes, one expert each, by hand."""

from pathlib import Path

import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.hardware.library import build_cluster
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.program.exchanges import exchanges
from simulator.program.network import Network


def network(node: str = "hgx-h200", ranks: int = 16) -> Network:
    cluster = build_cluster(node, "rail-fat-tree-400g", ranks, Path())
    mesh = Mesh(dp_shard=ranks, ep=ranks)
    return Network(cluster, Placement(mesh, apart(mesh.groups(), ranks), [lv.size for lv in cluster.levels]), mesh)


def test_a_library_exchanges_an_integer_for_each_expert_and_the_host_reads_them() -> None:
    asked = network()
    told = asked.counts("all_to_all", 3, exchanges()["all_to_all"])
    exchanged = asked.exchange(np.full((16, 16), 3 * 8.0))
    assert told is not None
    assert exchanged is not None
    # A copy to the host takes 6 us.
    assert (told.duration_ns - exchanged.duration_ns).tolist() == [6000] * 16
    assert told.collective.wire_bytes == pytest.approx(15 * 3 * 8)


def test_megatron_gathers_every_ranks_counts_of_all_experts() -> None:
    asked = network()
    told, gathered = (
        asked.counts("all_gather", 3, exchanges()["all_to_all"]),
        asked.ring("all_gather", "ep", 48 * 8 * 16),
    )
    assert told is not None
    assert gathered is not None
    assert (told.duration_ns - gathered.duration_ns).tolist() == [6000] * 16


def test_deepep_waits_for_all_ranks_and_writes_counts_between_nodes() -> None:
    """SGLang timed 52 to 57 us between 2 nodes of H100 (ai-dynamo/aiconfigurator@095f58a5, notify_us)."""
    asked = network("hgx-h100")
    told = asked.counts("all_to_all", 16, exchanges()["hierarchical"])
    assert told is not None
    # Twice the 22.8 us that a write to another node takes with its kernel, and 128 bytes to each rank.
    assert told.duration_ns.max() == pytest.approx(2 * 22.8e3, rel=0.01)


def test_nobody_tells_counts_where_ports_write_rows_or_a_rank_is_alone() -> None:
    assert network().counts("all_to_all", 3, exchanges()["low_latency"]) is None
    assert network(ranks=1).counts("all_to_all", 3, exchanges()["all_to_all"]) is None


def test_the_host_waits_for_counts_in_every_forward_pass_and_not_in_a_backward_pass(small: Small) -> None:
    tasks = lower(small("mixture", "parallel.ep=8", "training.recompute=full")).tasks
    told = [task for task in tasks if task.name == "dispatch counts"]
    assert {task.phase for task in told} == {"forward", "recompute"}
    assert len(told) == 2 * 4
    assert all(task.blocks_host for task in told)


def test_the_host_waits_three_times_more_where_pytorch_finds_the_rows_that_came(small: Small) -> None:
    settings = ("parallel.ep=8", "training.zero=1", "training.exchange=deduplicated")
    for fused, waits in (("true", 1), ("false", 1 + 3)):
        tasks = lower(small("mixture", *settings, f"training.dispatch_fusion={fused}")).tasks
        assert sum(task.blocks_host for task in tasks if (task.phase, task.layer) == ("forward", 1)) == waits


def test_rows_that_no_deepep_brings_are_not_found_by_pytorch(small: Small) -> None:
    with pytest.raises(Refused, match="dispatch_fusion"):
        assemble_job(*small("mixture", "parallel.ep=8", "training.zero=1", "training.dispatch_fusion=false"))
