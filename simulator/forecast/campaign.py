"""The whole training run: steps, checkpoints, failures and spare nodes, on the wall clock and in money.

The best interval between checkpoints is looked for around J. T. Daly's estimate (Future Generation Computer Systems
22(3), 2006), sqrt(2 x stall x mean time between failures), by running the same courses of failures with each.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, sqrt
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from simulator.engine.long_run import LongRun, Spent, go_through
from simulator.forecast.checkpointing import Storage
from simulator.forecast.errors import Refused
from simulator.forecast.scenario import Campaign, Described, Scenario
from simulator.hardware.cluster import Cluster
from simulator.hardware.library import load_failures, price

COURSES = 64
"""Courses of failures that a run is taken through."""
_TRIED = tuple(2 ** (step / 2) for step in range(-4, 5))
"""Intervals that are tried, over Daly's."""


def campaign(
    scenario: Scenario,
    folder: Path,
    cluster: Cluster,
    tokens_a_step: float,
    step_s: dict[str, float],
    storage: Storage,
    pace: float,
) -> dict[str, Any]:
    """The key "campaign" of a forecast whose step of *tokens_a_step* takes *step_s*, and runs at *pace* of that while a
    checkpoint goes to *storage*.

    Raise :exc:`Refused` for a run that failures leave no time, and what the reader of the failures' file raises.
    """
    asked = scenario.campaign
    assert asked is not None
    sheet = load_failures(asked.failures, folder)
    steps = ceil(asked.tokens / tokens_a_step)
    slowed_s = storage.transfer_s * (1.0 - pace)
    run = LongRun(
        work_s=steps * step_s["p50"],
        interval_s=0.0,
        stall_s=storage.stall_s + slowed_s,
        safe_s=storage.safe_s,
        restart_s=sheet.detection.value + sheet.restart.value + storage.back_s,
        interruptions_per_s=sheet.interruptions_per_s(cluster),
        broken_nodes_per_s=sheet.broken_nodes_per_s(cluster),
        repair_s=sheet.repair.value,
        spare_nodes=asked.spare_nodes,
    )
    least_s = max(step_s["p50"], storage.safe_s - run.stall_s)
    try:
        run, courses = _with_interval(run, asked, least_s)
    except ValueError as error:
        raise Refused([f"campaign: {error}"]) from None
    return {
        "tokens": asked.tokens,
        "steps": steps,
        "ideal_s": run.work_s,
        **_told(courses, run, step_s),
        "mtbf_s": 1 / (run.interruptions_per_s + run.broken_nodes_per_s),
        "restart_s": run.restart_s,
        "checkpoint": {
            "bytes": storage.bytes,
            "interval_s": run.interval_s,
            "stall_s": storage.stall_s,
            "slowed_s": slowed_s,
            "pace_meanwhile": pace,
            "safe_after_s": run.safe_s,
            "interval_is_best_of": len(_TRIED) if asked.checkpoint_interval is None else None,
        },
        "accelerators": cluster.accelerators + asked.spare_nodes * cluster.node.accelerators,
    }


def verdict(asked: Campaign, found: dict[str, Any], usd_per_accelerator_hour: float | None) -> dict[str, Any]:
    """Money, and whether deadline and budget are met: at the 90th percentile, so that nine times in ten they are."""
    wall = found["wall_s"]
    usd = {
        key: None if usd_per_accelerator_hour is None else usd_per_accelerator_hour * found["accelerators"] * s / 3600
        for key, s in wall.items()
    }
    problems = []
    if asked.within is not None and wall["p90"] > asked.within:
        problems.append("deadline")
    if asked.budget_usd is not None and usd["p90"] is not None and usd["p90"] > asked.budget_usd:
        problems.append("budget")
    return {"usd": usd, "misses": problems}


def usd_per_hour(scenario: Described, accelerator: str) -> float | None:
    """The scenario's price of an accelerator, else the listed one of the part *accelerator*, if there is one."""
    if scenario.usd_per_accelerator_hour is not None:
        return scenario.usd_per_accelerator_hour
    listed = price(accelerator)
    return listed.value if listed else None


def _with_interval(run: LongRun, asked: Campaign, least_s: float) -> tuple[LongRun, list[Spent]]:
    """The run at the interval asked for, or at the best of those tried, and the courses that it takes."""
    if asked.checkpoint_interval is not None:
        run = replace(run, interval_s=max(least_s, asked.checkpoint_interval))
        return run, _courses(run, asked.seed)
    failures_per_s = run.interruptions_per_s + run.broken_nodes_per_s
    daly_s = sqrt(2 * max(run.stall_s, 1e-3) / failures_per_s)
    intervals = dict.fromkeys(min(run.work_s, max(least_s, factor * daly_s)) for factor in _TRIED)
    tried = [(one := replace(run, interval_s=s), _courses(one, asked.seed)) for s in intervals]
    return min(tried, key=lambda pair: mean(course.wall_s for course in pair[1]))


def _courses(run: LongRun, seed: int) -> list[Spent]:
    return [go_through(run, np.random.default_rng([seed, number])) for number in range(COURSES)]


def _told(courses: list[Spent], run: LongRun, step_s: dict[str, float]) -> dict[str, Any]:
    """Percentiles of the wall clock, what the step's own uncertainty adds among them, and means of where it goes."""
    low, middle, high = np.quantile([course.wall_s for course in courses], (0.1, 0.5, 0.9))
    low, high = (float(s) * step_s[key] / step_s["p50"] for s, key in ((low, "p10"), (high, "p90")))
    lost = ("checkpoints_s", "rework_s", "restarts_s", "waiting_s")
    return {
        "wall_s": {"p10": low, "p50": float(middle), "p90": high},
        "goodput": run.work_s / mean(course.wall_s for course in courses),
        "lost": {key: mean(getattr(course, key) for course in courses) for key in lost},
        "failures": mean(course.failures for course in courses),
    }
