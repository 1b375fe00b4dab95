"""A node whose accelerators compute at a share of the others' pace; 16 H200 on two nodes."""

import numpy as np
import pytest
from small_jobs import DEVICE_BOUND, Small, lower

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.hardware.cluster import Cluster

BUSY = ("training.global_batch_sequences=256", "training.micro_batch_sequences=16", "training.execution=compiled")
SECOND_SLOW = "cluster.degraded.slow_nodes={1: 0.8}"
STAGES = ("parallel.dp_shard=8", "parallel.pp=2")


def summary(small: Small, kind: str, *overrides: str, fold: bool = True) -> dict:
    return forecast(*small(kind, *BUSY, *overrides), fold=fold).summary


def cluster(small: Small, *overrides: str) -> Cluster:
    return assemble_job(*small("dense", *overrides)).cluster


def test_ranks_of_the_node_and_no_others_are_slow(small: Small) -> None:
    paces = cluster(small, SECOND_SLOW).pace(np.arange(16))
    assert paces.tolist() == [1.0] * 8 + [0.8] * 8
    assert cluster(small).pace(np.arange(16)).tolist() == [1.0] * 16


def test_kernels_take_longer_by_the_share_and_transfers_do_not(small: Small) -> None:
    whole, slow = lower(small("dense", *BUSY)), lower(small("dense", *BUSY, SECOND_SLOW))
    assert len(whole.tasks) == len(slow.tasks)
    for before, after in zip(whole.tasks, slow.tasks, strict=True):
        if before.stream == "compute":
            alone = int(np.max(before.duration_ns))
            assert np.asarray(after.duration_ns).tolist() == [alone, -(-alone * 5 // 4)]
        else:
            assert set(np.ravel(after.duration_ns)) == set(np.ravel(before.duration_ns))


def test_everybody_waits_for_the_slow_node(small: Small) -> None:
    # Gathers and reductions join all ranks, so a step takes as long as with both nodes slow; the sound one waits.
    one, both = (
        summary(small, "dense", slow) for slow in (SECOND_SLOW, "cluster.degraded.slow_nodes={0: 0.8, 1: 0.8}")
    )
    whole = summary(small, "dense")
    assert one["step_time_s"]["p50"] == both["step_time_s"]["p50"] > whole["step_time_s"]["p50"]
    assert whole["time"]["imbalance_s"] == both["time"]["imbalance_s"] == 0 < one["time"]["imbalance_s"]
    assert both["time"]["compute_s"] == pytest.approx(whole["time"]["compute_s"] / 0.8, rel=0.01)


def test_a_slow_first_stage_keeps_the_second_waiting_less_than_the_other_way_round(small: Small) -> None:
    # The second stage has the loss and more to do: slow, it is the longer one by more.
    stages = *STAGES, *DEVICE_BOUND
    first, second = (
        summary(small, "dense", *stages, f"cluster.degraded.slow_nodes={{{node}: 0.8}}")["step_time_s"]["p50"]
        for node in (0, 1)
    )
    assert summary(small, "dense", *stages)["step_time_s"]["p50"] < first < second


@pytest.mark.parametrize(("kind", "overrides"), [("dense", ()), ("mixture", ("parallel.ep=8",)), ("dense", STAGES)])
def test_folded_ranks_take_as_long_as_ranks_apart(small: Small, kind: str, overrides: tuple[str, ...]) -> None:
    folded, apart = (summary(small, kind, SECOND_SLOW, *overrides, fold=f)["step_time_s"]["p50"] for f in (True, False))
    assert folded == apart


def test_a_share_of_one_is_a_sound_node(small: Small) -> None:
    sound = "cluster.degraded.slow_nodes={1: 1.0}"
    assert summary(small, "dense", sound)["step_time_s"] == summary(small, "dense")["step_time_s"]


def test_a_node_that_is_not_there_is_refused(small: Small) -> None:
    with pytest.raises(Refused) as caught:
        cluster(small, "cluster.degraded.slow_nodes={2: 0.8}")
    assert list(caught.value.messages) == [
        "cluster.degraded.slow_nodes: found node 2, but 16 accelerators are nodes 0 to 1 of 8; nearest valid: 1"
    ]
