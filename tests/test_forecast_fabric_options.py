"""Scenario options of the fabric: how rows find experts, slow links and dead rails; 16 H200 on two nodes."""

import pytest
from small_jobs import Small

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.program.training_step import TrainingStep

FAR = ("parallel.ep=16",)


def step_s(small: Small, *overrides: str) -> float:
    return float(forecast(*small("mixture", *FAR, *overrides)).summary["step_time_s"]["p50"])


def test_a_token_sent_once_to_a_node_saves_time_on_its_ports(small: Small) -> None:
    slow = "cluster.degraded.links={leaf: 0.05}"
    plain, relayed = step_s(small, slow), step_s(small, slow, "training.exchange=hierarchical")
    assert relayed < plain


def test_half_of_the_rails_dead_takes_as_long_as_ports_of_half_the_rate(small: Small) -> None:
    whole = step_s(small)
    dead, slow = step_s(small, "cluster.degraded={dead_rails: 4}"), step_s(small, "cluster.degraded.links={leaf: 0.5}")
    assert whole < dead == slow


def test_without_gpu_direct_ports_are_as_slow_as_the_host_and_copies_wait_for_them(small: Small) -> None:
    assert step_s(small, "cluster.gpu_direct=false") > step_s(small)
    (program,) = TrainingStep(assemble_job(*small("mixture", *FAR, "cluster.gpu_direct=false"))).programs(1)
    moves = (task.collective for task in program.tasks if task.collective is not None)
    exchange = next(move for move in moves if move.communicator == "ep")
    assert {"leaf", "host link copy_out", "host link copy_in", "host memory"} <= set(exchange.link_busy_ns)


def test_rows_that_ports_write_into_memory_need_room_and_no_host(small: Small) -> None:
    few = ("training.sequence_length=1024", *FAR)
    plain, written = (
        TrainingStep(assemble_job(*small("mixture", *few, f"training.exchange={way}"))).programs(1)[0]
        for way in ("all_to_all", "low_latency")
    )
    held = {one.key: one.bytes for one in written.resident}
    assert held["resident.exchange buffer"] == 2 * 16 * 1024 * (2 * 2048 + 16)
    assert "resident.exchange buffer" not in {one.key for one in plain.resident}
    assert sum(task.blocks_host for task in plain.tasks) - sum(task.blocks_host for task in written.tasks) == 4


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("training.exchange=low_latency",),
            "training.exchange: found low_latency, but each rank brings 2,048 tokens to experts at once, and "
            "its kernels count to 1,024; nearest valid: 1,024 tokens, or all_to_all, deduplicated, hierarchical",
        ),
        (
            ("training.exchange=low_latency", "cluster.gpu_direct=false", "parallel.ep=16"),
            "training.exchange: found low_latency, whose ports write into accelerators, but cluster.gpu_direct is off",
        ),
        (
            ("training.exchange=low_latency", "cluster.node=hgx-a100", "parallel.ep=16"),
            "training.exchange: found low_latency, but what ports of HGX A100 80GB attain so is not known (its file "
            "has no nic.one_sided); allowed: all_to_all, deduplicated, hierarchical",
        ),
        (
            ("cluster.gpu_direct=false", "cluster.accelerators=8", "parallel.dp_shard=8"),
            "cluster.gpu_direct: 8 accelerators use no ports; leave it out",
        ),
        (
            ("cluster.degraded.links={spine: 0.5}",),
            "cluster.degraded.links: 16 accelerators reach no spine; allowed: scale_up, leaf",
        ),
        (
            ("cluster.degraded.dead_rails=8",),
            "cluster.degraded.dead_rails: a node has 8 rails, 8 dead leave none; nearest valid: 7",
        ),
    ],
)
def test_what_is_not_there_is_refused(small: Small, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refused) as caught:
        assemble_job(*small("mixture", *overrides))
    assert list(caught.value.messages) == [message]
