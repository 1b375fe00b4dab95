"""Splits that go on with nodes lost: what they shrink to, and which of them a plan may recommend."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small_jobs import write_small

from simulator.forecast.errors import Refused
from simulator.planner.answer import answer
from simulator.planner.plan import plan, prepare
from simulator.planner.splits import SCHEDULES, Split
from simulator.planner.store import Store
from simulator.planner.survival import shrunk
from simulator.planner.workers import workers
from simulator.report.plan_table import plan_headline

CAMPAIGN = "campaign={tokens: 1e9, storage_bandwidth: 10 GB/s, survive_nodes: 1}"
SIXTEEN = Split(1, 16, 1, 1, 1, 1, 1, 3, 0, 1)


def test_data_parallelism_shrinks_to_the_most_ranks_that_the_batch_divides_by() -> None:
    # 120 cards are left of 128: of 512 sequences 64 ranks take 8 each, of 480 sequences all 120 take 4.
    whole = replace(SIXTEEN, dp_shard=128)
    assert shrunk(whole, 120, 512, 8) == replace(whole, dp_shard=64)
    assert shrunk(whole, 120, 480, 8) == replace(whole, dp_shard=120)


def test_a_replica_is_left_out_where_that_leaves_as_many_ranks() -> None:
    # 24 of 32 cards, where two replicas had 16: of 48 sequences 24 ranks take 2 each, of 32 no more than 16 have any.
    replicas = replace(SIXTEEN, dp_replicate=2)
    assert shrunk(replicas, 24, 48, 8) == replace(replicas, dp_shard=12)
    assert shrunk(replicas, 24, 32, 8) == replace(replicas, dp_replicate=1)


def test_more_cards_than_one_nodes_are_whole_nodes() -> None:
    # 24 of 32 cards: of 160 sequences 20 ranks would take 8 each, on two nodes and a half; 16 take 10 each. Of 100
    # sequences 20 and 10 ranks would take whole ones, on no whole nodes; 5 of one node take 20 each.
    whole = replace(SIXTEEN, dp_shard=32)
    assert shrunk(whole, 24, 160, 8) == replace(whole, dp_shard=16)
    assert shrunk(whole, 24, 100, 8) == replace(whole, dp_shard=5)
    # Three replicas of 8, where there were four of 16: of one or two there would be 16 ranks at most.
    replicas = replace(SIXTEEN, dp_replicate=4, ep=8)
    assert shrunk(replicas, 24, 96, 8) == replace(replicas, dp_replicate=3, dp_shard=8)
    # Eight stages of 3 cards each are three nodes.
    staged = replace(whole, dp_shard=4, pp=8)
    assert shrunk(staged, 24, 96, 8) == replace(staged, dp_shard=3)


def test_experts_and_stages_stay_as_they_are() -> None:
    # 8 of 16 cards: experts over 16 ranks have no place; over 8 they have.
    assert shrunk(replace(SIXTEEN, ep=16), 8, 64, 8) is None
    assert shrunk(replace(SIXTEEN, ep=8), 8, 64, 8) == replace(SIXTEEN, dp_shard=8, ep=8)
    # Two stages on 8 cards have 4 ranks each: 32 sequences are 8 micro-batches. DualPipe takes 2 * 2 at least.
    staged = replace(SIXTEEN, dp_shard=8, pp=2, zero=1)
    assert shrunk(staged, 8, 32, 8) == replace(staged, dp_shard=4)
    mirrored = replace(staged, schedule=SCHEDULES.index("dualpipe"))
    assert shrunk(mirrored, 8, 12, 8) == replace(mirrored, dp_shard=3)
    assert shrunk(mirrored, 1, 12, 8) is None


def test_the_winner_is_forecast_with_a_node_lost(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)("dense", "training.global_batch_sequences=32", CAMPAIGN)
    with workers("local", 1) as pool:
        found = plan(scenario, folder, Store(tmp_path / "plan"), pool, most=2)
    winner = found["winner"]
    assert winner["survives"]["accelerators_left"] == 8
    assert winner["survives"]["accelerators"] == 8
    assert winner["survives"]["verdict"] == "fits"
    assert winner["survives"]["step_time_s"] > winner["step_time_s"]


def test_a_spare_node_takes_the_place_of_a_lost_one(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)(
        "dense", "training.global_batch_sequences=32", CAMPAIGN, "campaign.spare_nodes=1"
    )
    with workers("local", 1) as pool:
        found = plan(scenario, folder, Store(tmp_path / "plan"), pool, most=1)
    assert found["winner"]["survives"]["step_time_s"] == found["winner"]["step_time_s"]


def test_splits_that_a_loss_ends_are_no_candidates(tmp_path: Path) -> None:
    read = write_small(tmp_path)
    any_, _ = prepare(*read("mixture", "training.global_batch_sequences=32"))
    lasting, _ = prepare(*read("mixture", "training.global_batch_sequences=32", CAMPAIGN))
    assert any_.splits["ep"].max() == 16
    assert lasting.splits["ep"].max() == 8


def test_what_does_not_fit_with_a_node_lost_does_not_win(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)("dense", "training.global_batch_sequences=32", CAMPAIGN)
    search, _ = prepare(scenario, folder)
    row = {"verdict": "fits", "step_time_s": 1.0, "peak_bytes": 1.0}
    search.learn({0: row, 1: row | {"step_time_s": 2.0}})
    assert search.survival is not None
    assert search.winner == 0
    search.survival.rows[0] = row | {"verdict": "does not fit"}
    assert search.winner == 1
    # Nothing is ruled out by the step and the memory of a split that may not be used.
    search.bound.step_s[2] = 1.5
    assert 2 in search.promising()
    search.bound.step_s[2], search.bound.peak_bytes[2] = 1.5, 1.0
    search.survival.rows[1] = row | {"verdict": "does not fit"}
    assert 2 in search.roomier()


def test_what_has_no_forecast_with_a_node_lost_failed(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)("dense", "training.global_batch_sequences=32", CAMPAIGN)
    search, _ = prepare(scenario, folder)
    row = {"verdict": "fits", "step_time_s": 1.0, "peak_bytes": 1.0, "usd_per_step": None, "error": None}
    search.learn({0: row | {"key": "a", "time": "{}"}, 1: row | {"key": "b", "time": "{}"}})
    assert search.survival is not None
    settings = json.dumps({"cluster.accelerators": 8, "parallel": {}})
    for number, verdict, error in ((0, "failed", "cluster.segment_nodes: 3"), (1, "does not fit", None)):
        search.survival.rows[number] = row | {"verdict": verdict, "error": error, "settings": settings}
    found = answer(scenario, search, Store(tmp_path / "plan"))
    failed, too_large = found["splits"][:2]
    assert not failed["pareto"]
    assert not too_large["pareto"]
    assert plan_headline(found) == "No split of small-dense that fits 16 cards goes on with nodes lost"
    assert (failed["verdict"], too_large["verdict"]) == ("failed", "does not survive")
    assert failed["loses_by"] == {"term": "nodes lost", "message": "cluster.segment_nodes: 3", "at_least": False}


def test_broken_parts_of_nodes_that_may_be_lost_are_refused(tmp_path: Path) -> None:
    ill = ("training.global_batch_sequences=32", CAMPAIGN, "cluster.degraded.slow_nodes={1: 0.6}")
    read = write_small(tmp_path)
    with pytest.raises(
        Refused, match=r"cluster\.degraded: the nodes that are lost may be those that are slow or broken"
    ):
        prepare(*read("dense", *ill))
    prepare(*read("dense", *ill, "campaign.spare_nodes=1"))


def test_where_nothing_is_left_the_plan_is_refused(tmp_path: Path) -> None:
    read = write_small(tmp_path)
    with pytest.raises(Refused, match=r"there are 2 nodes and 0 spare ones; nearest: 1, or campaign\.spare_nodes 1"):
        prepare(*read("dense", "training.global_batch_sequences=32", CAMPAIGN, "campaign.survive_nodes=2"))
    # One sequence is no work for two data-parallel ranks: each split has all 16 cards for one.
    one = ("training.global_batch_sequences=1", "parallel={tp: 8, cp: 2}")
    with pytest.raises(Refused, match="no split goes on with the 8 cards left and the same batch of 1 sequences"):
        prepare(*read("dense", *one, CAMPAIGN))
