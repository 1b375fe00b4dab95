"""How long forecasts take. Off by default; run with `pytest tests/benchmarks --benchmark-only`."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from simulator.forecast.forecast import Forecast, forecast
from simulator.forecast.reading import read_scenario

MAIN = "kimi-k3-lora-128xh200"
SIXTEEN_THOUSAND = (
    "cluster.accelerators=16384",
    "parallel.dp_replicate=128",
    "training.global_batch_sequences=65536",
)


def run(*overrides: str, fold: bool = True) -> Forecast:
    return forecast(*read_scenario(MAIN, overrides), fold=fold)


@pytest.mark.benchmark(group="forecast of the main job")
def test_main_job(benchmark: BenchmarkFixture) -> None:
    found = benchmark.pedantic(run, rounds=3)
    assert found.summary["engine"]["events"] < 200_000


@pytest.mark.benchmark(group="forecast of the main job")
def test_main_job_with_thousands_of_micro_batches(benchmark: BenchmarkFixture) -> None:
    found = benchmark.pedantic(run, (f"training.global_batch_sequences={128 * 4096}",), rounds=3)
    assert found.summary["engine"]["micro_batches_simulated"] == 4


@pytest.mark.benchmark(group="forecast of the main job")
def test_replicas_to_sixteen_thousand_ranks(benchmark: BenchmarkFixture) -> None:
    found = benchmark.pedantic(run, SIXTEEN_THOUSAND, rounds=1)
    assert (found.summary["engine"]["classes"], found.summary["engine"]["ranks"]) == (64, 16384)


@pytest.mark.benchmark(group="one micro-batch of the main job, folded against apart")
@pytest.mark.parametrize("fold", [True, False], ids=["64 behaviours", "128 ranks apart"])
def test_folding(benchmark: BenchmarkFixture, fold: bool) -> None:
    found = benchmark.pedantic(run, ("training.global_batch_sequences=128",), {"fold": fold}, rounds=3 if fold else 1)
    assert found.summary["engine"]["classes"] == (64 if fold else 128)
