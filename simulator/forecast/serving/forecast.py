"""The forecast of a scenario of serving: what requests see, what accelerators deliver and cost, what limits them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from simulator.forecast.assembly import find_cluster
from simulator.forecast.forecast import Progress, silent
from simulator.forecast.scenario_serving import ServingScenario
from simulator.forecast.serving.assembly import deploy
from simulator.forecast.serving.loop import Course, Loop, Setting
from simulator.forecast.serving.memory import serving_memory
from simulator.forecast.serving.pool import Pool
from simulator.forecast.serving.pricing import GRADES, IterationPrices
from simulator.forecast.serving.requests import requests
from simulator.forecast.serving.summary import summarise
from simulator.program.serving.pricer import IterationPricer


@dataclass(frozen=True, slots=True)
class ServingForecast:
    """What a simulated loop comes to."""

    summary: dict[str, Any]
    """The keys of `rackcast run --json`."""
    course: Course | None
    """None where no request fits."""


def serve(scenario: ServingScenario, folder: Path, progress: Progress | None = None) -> ServingForecast:
    """Simulate *scenario*, whose relative names start from *folder*.

    Raise :exc:`Refused` and what the readers raise for input that does not go together.
    """
    began, say = perf_counter(), progress or silent
    say("reading", 0.0)
    asked = scenario.serving
    wanted = requests(asked.requests, folder)
    pools = deploy(scenario, folder, wanted)
    head = {"scenario": scenario.name}
    if not all(pool.has_room for pool in pools):
        return ServingForecast(head | serving_memory(pools, wanted, None), None)
    cluster = find_cluster(scenario.cluster, folder)
    at_once = asked.requests.concurrency and min(asked.requests.concurrency, len(wanted))
    setting = Setting(cluster, at_once, asked.requests.prefilled, asked.prefix_cache, asked.front_end)
    prices = [_prices(pool) for pool in pools]
    course = Loop(pools, prices, setting).run(wanted, lambda share: say("simulating", share))
    summary = head | serving_memory(pools, wanted, course) | summarise(scenario, pools, prices, course)
    summary["engine"]["wall_s"] = perf_counter() - began
    return ServingForecast(summary, course)


def _prices(pool: Pool) -> IterationPrices:
    deployment = pool.deployment
    grades = [tier.grade for tier in pool.tiers] or ["measured"]
    loads = max(grades, key=GRADES.index)
    layers, graphs = len(deployment.architecture.layers), deployment.cuda_graphs
    return IterationPrices(IterationPricer(deployment).price, pool.batches, layers, loads, graphs=graphs)
