"""How fast splits are bounded. Off by default; run with `pytest tests/benchmarks --benchmark-only`."""

from time import process_time

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from simulator.documents import read
from simulator.forecast.reading import find_scenario
from simulator.forecast.scenario import Scenario
from simulator.planner.bounds import Bound, Bounds
from simulator.planner.candidates import candidates, for_any_sharding, job_of_any_split
from simulator.planner.least_prices import LeastPrices
from simulator.planner.mixed_prices import MixedPrices


@pytest.mark.benchmark(group="rough bounds of all candidates")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("kimi-k3-lora-128xh200", []),
        ("deepseek-v3-pretrain-2048xh800", ["cluster.accelerators=1024"]),
        ("kimi-10t-pretrain-16384x950", []),
    ],
    ids=["128 cards", "1,024 cards", "16,384 cards"],
)
def test_rough_bounds(benchmark: BenchmarkFixture, name: str, changes: list[str]) -> None:
    path = find_scenario(name)
    scenario = for_any_sharding(read(path, Scenario, changes).content)
    job = job_of_any_split(scenario, path.parent)
    splits = candidates(scenario, job)

    def bounded() -> tuple[Bound, float]:
        began, prices = process_time(), LeastPrices(job)
        found = Bounds(job, MixedPrices(prices, prices, prices), scenario.training.global_batch_sequences).of(splits)
        return found, process_time() - began

    bound, spent_s = benchmark.pedantic(bounded, rounds=1)
    assert (bound.step_s > 0).all()
    benchmark.extra_info["candidates"] = len(splits)
    benchmark.extra_info["candidates_a_cpu_second"] = round(len(splits) / spent_s)
