"""Bounds are sharpened where they may decide, and nowhere lowered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_jobs import write_small

from simulator.planner.bounds import Bounds
from simulator.planner.candidates import candidates, for_any_sharding, job_of_any_split
from simulator.planner.expert_rows import ExpertRows
from simulator.planner.mixed_prices import MixedPrices
from simulator.planner.plan import prepare
from simulator.planner.search import Search
from simulator.planner.sharpening import SHARPEST, Sharpening
from simulator.planner.split_prices import SplitPrices
from simulator.planner.splits import OPEN


@pytest.fixture
def search(tmp_path: Path) -> Search:
    scenario, folder = write_small(tmp_path)("mixture", "training.global_batch_sequences=32")
    return prepare(scenario, folder)[0]


def test_sharpened_bounds_are_those_of_a_forecasts_own_prices(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)("mixture", "training.global_batch_sequences=32")
    scenario = for_any_sharding(scenario)
    job = job_of_any_split(scenario, folder)
    splits = candidates(scenario, job).only(np.arange(0, 15000, 300))
    assert (splits["sharing"] == OPEN).any()
    prices = SplitPrices(job, ExpertRows(scenario, folder, job.architecture, job.cluster))
    sharpening, numbers = Sharpening(splits, job, prices, 32), np.arange(len(splits))
    rough_s, steps = sharpening.bound.step_s.copy(), 0
    while sharpening.sharpen(numbers):
        steps += 1
    close = Bounds(job, MixedPrices(prices, prices, prices), 32).of(splits)
    assert steps == SHARPEST
    assert sharpening.is_sharp(numbers).all()
    assert not (splits["sharing"] == OPEN).any()
    assert (sharpening.bound.step_s >= rough_s).all()
    assert sharpening.bound.step_s == pytest.approx(close.step_s, rel=1e-9)
    assert sharpening.bound.peak_bytes == pytest.approx(close.peak_bytes, rel=1e-9)


def test_what_is_simulated_next_has_the_lowest_sharp_bounds_of_different_families(search: Search) -> None:
    search.own = None
    chosen = search.next(4)
    assert search.bounds.is_sharp(np.array(chosen)).all()
    bounds = search.bound.step_s[chosen]
    assert (np.diff(bounds) >= 0).all()
    # Whatever has a lower bound, sharp or not, differs from one of them in schedule and exchange alone.
    family = [(s.degrees, s.zero, s.recompute, s.micro_batch_sequences) for s in map(search.splits.split, chosen)]
    assert all(family.count(one) == 1 for one in family)
    for number in search.promising():
        if search.bound.step_s[number] < bounds[-1]:
            split = search.splits.split(int(number))
            assert (split.degrees, split.zero, split.recompute, split.micro_batch_sequences) in family


def test_few_bounds_are_sharpened(search: Search) -> None:
    search.own = None
    search.next(4)
    everything = np.arange(len(search.splits))
    assert search.bounds.is_sharp(everything).sum() < len(everything) / 10
