"""Sizes of cluster from 8 to 32 cards for a dense model of four layers."""

from pathlib import Path
from typing import Any

import pytest
from small_jobs import write_small

from simulator.forecast.errors import Refused
from simulator.planner.sizing import size
from simulator.planner.store import Store
from simulator.planner.workers import workers

RUN = ("campaign.tokens=1e10", "campaign.storage_bandwidth=10 GB/s", "training.global_batch_sequences=32")


def sized(folder: Path, *overrides: str) -> dict[str, Any]:
    scenario, home = write_small(folder)("dense", *RUN, "campaign.most_accelerators=32", *overrides)
    with workers("local", 1) as pool:
        return size(scenario, home, Store(folder / "plan"), pool, most=2, say=lambda _: None)


def test_whole_nodes_are_doubled_and_the_cheapest_that_meets_wins(tmp_path: Path) -> None:
    found = sized(tmp_path)
    assert [one["accelerators"] for one in found["sizes"]] == [8, 16, 32]
    meeting = [one for one in found["sizes"] if one["verdict"] == "meets"]
    assert found["sizes"][2]["verdict"] == "not needed"
    assert found["winner"]["usd"]["p50"] == min(one["usd"]["p50"] for one in meeting)
    for one in meeting:
        # The list price of an H200 in hardware_profiles/prices.yaml: the middle of 2.5 and 7 USD an hour.
        assert one["usd"]["p50"] == pytest.approx(4.75 * one["accelerators"] * one["wall_s"]["p50"] / 3600)


def test_a_size_too_slow_even_at_best_is_not_planned(tmp_path: Path) -> None:
    # 152,588 steps of 65,536 tokens would have to take 7.9 ms each; on 8 cards launches and work take 8.7 ms at least.
    found = sized(tmp_path, "campaign.within=20 min")
    assert [one["verdict"] for one in found["sizes"]] == ["too slow", "misses deadline", "misses deadline"]
    assert found["sizes"][0]["reason"].startswith("at least")
    assert found["winner"] is None


def test_a_budget_that_nothing_meets_leaves_no_winner(tmp_path: Path) -> None:
    found = sized(tmp_path, "campaign.budget_usd=0.01", "usd_per_accelerator_hour=1")
    assert found["winner"] is None
    assert {one["verdict"] for one in found["sizes"]} == {"too dear"}


def test_where_no_size_is_possible_each_says_why(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="8 cards"):
        sized(tmp_path, "cluster.fabric=nowhere")
