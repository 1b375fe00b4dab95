"""What the parts of a forecast cost. Off by default; run with `pytest tests/benchmarks --benchmark-only`."""

import numpy as np
import pytest
import simpy
from pytest_benchmark.fixture import BenchmarkFixture

from simulator.engine.ledger import account
from simulator.engine.links import fair_shares
from simulator.engine.simulation import Part, Simulation
from simulator.parallel.folding import fold
from simulator.parallel.mesh import Mesh
from simulator.program.stage import StageProgram

EVENTS = 100_000


@pytest.mark.benchmark(group="events")
def test_bare_simpy_timeouts(benchmark: BenchmarkFixture) -> None:
    def run() -> float:
        env = simpy.Environment()

        def ticks() -> simpy.events.ProcessGenerator:
            for _ in range(EVENTS):
                yield env.timeout(1)

        env.process(ticks())
        env.run()
        return env.now

    assert benchmark(run) == EVENTS
    benchmark.extra_info["events_per_s"] = round(EVENTS / benchmark.stats["mean"])


@pytest.mark.benchmark(group="events")
def test_simulation_of_one_micro_batch(benchmark: BenchmarkFixture, main_job: StageProgram) -> None:
    def run() -> int:
        simulation = Simulation(Part(main_job.tasks, 64))
        simulation.run()
        return simulation.events

    events = benchmark(run)
    benchmark.extra_info["events_per_s"] = round(events / benchmark.stats["mean"])
    benchmark.extra_info["tasks_per_s"] = round(len(main_job.tasks) / benchmark.stats["mean"])


@pytest.mark.benchmark(group="ledger")
def test_ledger_of_one_micro_batch(benchmark: BenchmarkFixture, main_job: StageProgram) -> None:
    ledgers = benchmark(account, main_job.tasks, main_job.resident, 64)
    assert ledgers["hbm"].left_bytes.max() == 0


@pytest.mark.benchmark(group="links")
def test_shares_of_eight_transfers(benchmark: BenchmarkFixture) -> None:
    usages = [{"nvlink": 0.9, "nic": 0.1 * n} if n % 2 else {"nic": 0.8} for n in range(8)]
    assert len(benchmark(fair_shares, usages)) == 8


@pytest.mark.benchmark(group="links")
@pytest.mark.parametrize("transfers", [1_000, 10_000])
def test_fair_shares_of_thousands(benchmark: BenchmarkFixture, transfers: int) -> None:
    rng = np.random.default_rng(3)
    links = [f"link {number}" for number in range(64)]
    usages = [{links[link]: float(rng.uniform(0.01, 1)) for link in rng.choice(64, 3)} for _ in range(transfers)]
    assert len(benchmark.pedantic(fair_shares, (usages,), rounds=3)) == transfers


@pytest.mark.benchmark(group="folding")
def test_folding_of_sixteen_thousand_ranks(benchmark: BenchmarkFixture) -> None:
    mesh = Mesh(dp_replicate=128, dp_shard=128, ep=64)
    assert benchmark(fold, np.stack([mesh.expert_rank()], axis=1), mesh.groups()).behaviours == 64
