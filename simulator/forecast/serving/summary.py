"""What a serving loop comes to, as `rackcast run --json` has it."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many
from typing import Any

import numpy as np

from simulator.forecast.campaign import usd_per_hour
from simulator.forecast.scenario_serving import ServingScenario
from simulator.forecast.serving.engine import Row
from simulator.forecast.serving.limits import KINDS, limits
from simulator.forecast.serving.loop import Course
from simulator.forecast.serving.pool import Pool
from simulator.forecast.serving.pricing import FIGURES, GRADES, PARTS, IterationPrices
from simulator.forecast.serving.sequence import Sequence
from simulator.forecast.uncertainty import interval, widest

MILLION = 1e6
SECONDS_AN_HOUR = 3600


def summarise(
    scenario: ServingScenario, pools: Many[Pool], prices: Many[IterationPrices], course: Course
) -> dict[str, Any]:
    """All but name, memory and wall time."""
    span_s = course.end_ns / 1e9
    accelerators = scenario.cluster.accelerators
    elsewhere = scenario.serving.requests.prefilled
    # Whoever computed a prompt made the first token of its answer, too.
    outputs = sum(one.request.output_tokens - elsewhere for one in course.sequences) * course.scale
    prompts = 0 if elsewhere else sum(one.request.prompt_tokens for one in course.sequences) * course.scale
    of_engine = limits(pools[0], prices[0], course.rows["decode"], course.end_ns * course.engines["decode"])
    grades = _grades(course.rows["decode"])
    return {
        **_requests(course),
        **_latencies(course, first=not elsewhere),
        "output_tokens_per_s": outputs / span_s,
        "output_tokens_per_s_per_accelerator": outputs / span_s / accelerators,
        "prompt_tokens_per_s": prompts / span_s,
        "prompt_tokens_per_s_per_accelerator": prompts / span_s / accelerators,
        "duration_s": span_s,
        "limited_by": KINDS[max(of_engine, key=lambda kind: of_engine[kind])],
        "limits": of_engine,
        "time": _time(pools[0], course.rows["decode"], course.end_ns, course.engines["decode"]),
        "iteration_s": _iterations(course.rows["decode"]),
        "widest_inputs": widest({("iterations", grade): seconds for grade, seconds in grades.items()}),
        **({"prefill": _prefill(pools[1], course)} if len(pools) > 1 else {}),
        "cost": _cost(scenario, pools[0], span_s, outputs, prompts),
        "engine": {
            "events": course.events,
            "iterations": sum(row.iterations for rows in course.rows.values() for row in rows),
            "priced": sum(one.priced for one in prices),
            "ranks": sum(len(ranks) for ranks in course.ranks.values()),
        },
        "provenance": grades if not (total := sum(grades.values())) else {k: v / total for k, v in grades.items()},
    }


def _requests(course: Course) -> dict[str, Any]:
    done = course.sequences
    ranks = course.ranks["decode"]
    found = sum(rank.found_tokens for every in course.ranks.values() for rank in every)
    return {
        "requests": {
            "simulated": len(done),
            "of": round(len(done) * course.scale),
            "prompt_tokens_mean": _mean(one.request.prompt_tokens for one in done),
            "output_tokens_mean": _mean(one.request.output_tokens for one in done),
            "cached_share": found / max(1, sum(one.request.prompt_tokens for one in done)),
            "preemptions": round(sum(rank.preemptions for rank in ranks) * course.scale),
            "waited_for_room": round(sum(rank.refusals for rank in ranks) * course.scale),
        }
    }


def _latencies(course: Course, *, first: bool) -> dict[str, Any]:
    """Of requests; the time to the *first* token where prompts are computed here."""
    done = course.sequences
    several = [one for one in done if one.request.output_tokens > 1]
    return {
        "ttft_s": _spread([one.first_ns - one.arrival_ns for one in done]) if first else None,
        "tpot_s": _spread([_tpot_ns(one) for one in several]),
        "latency_s": _spread([one.end_ns - one.arrival_ns for one in done]),
    }


def _tpot_ns(sequence: Sequence) -> float:
    return (sequence.end_ns - sequence.first_ns) / (sequence.request.output_tokens - 1)


def _spread(values_ns: Many[float]) -> dict[str, float] | None:
    """Mean and percentiles over requests, in seconds; None of none."""
    if not values_ns:
        return None
    middle, high, highest = np.percentile(values_ns, (50, 90, 99)) / 1e9
    return {"mean": float(np.mean(values_ns) / 1e9), "p50": middle, "p90": high, "p99": highest}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _grades(rows: Many[Row]) -> dict[str, float]:
    total = _sum(rows)
    return {grade: float(total[FIGURES.index(grade)]) for grade in GRADES}


def _sum(rows: Many[Row]) -> np.ndarray:
    return np.asarray(sum((row.figures * row.iterations for row in rows), np.zeros(len(FIGURES))))


def _time(pool: Pool, rows: Many[Row], span_ns: int, engines: int) -> dict[str, float]:
    """Seconds of an engine of *pool* by part, the mean over all *engines*; together the *span_ns* of the loop, but for
    halves of nanoseconds. Batches of a pipeline wait for each other where its stages are not alike.
    """
    total, span_s = _sum(rows) / engines, span_ns / 1e9
    busy_s = sum(row.end_ns - row.begin_ns for row in rows) / 1e9 / engines
    parts = {name: float(total[number]) for number, name in enumerate(PARTS)}
    waits = max(0.0, busy_s - sum(parts.values())) if pool.batches > 1 else 0.0
    return parts | {"pipeline_wait_s": waits, "idle_s": max(0.0, span_s - busy_s)}


def _iterations(rows: Many[Row]) -> dict[str, Any]:
    """The mean iteration that only decodes, and the mean one with prompts: time, and what a rank has to do in it."""
    kinds = {
        "decode": [row for row in rows if not row.prompt_tokens],
        "with_prompts": [row for row in rows if row.prompt_tokens],
    }
    return {kind: _iteration(chosen) for kind, chosen in kinds.items() if chosen}


def _iteration(rows: Many[Row]) -> dict[str, Any]:
    count = sum(row.iterations for row in rows)
    mean_s = sum(row.end_ns - row.begin_ns for row in rows) / 1e9 / count
    figures = _sum(rows) / count
    grades = {("iteration", grade): float(figures[FIGURES.index(grade)]) for grade in GRADES}
    return {
        **interval(mean_s, grades),
        "iterations": count,
        "sequences": sum(row.decoding * row.iterations / row.ranks for row in rows) / count,
        "prompt_tokens": sum(row.prompt_tokens * row.iterations / row.ranks for row in rows) / count,
        "parts": {name: float(figures[number]) for number, name in enumerate(PARTS)},
    }


def _prefill(pool: Pool, course: Course) -> dict[str, Any]:
    rows = course.rows["prefill"]
    engines = course.engines["prefill"]
    return {
        "accelerators": pool.accelerators,
        "busy_share": sum(row.end_ns - row.begin_ns for row in rows) / course.end_ns / engines,
        "handed_over_bytes_per_accelerator": course.sent_bytes,
        "time": _time(pool, rows, course.end_ns, engines),
    }


def _cost(
    scenario: ServingScenario, pool: Pool, span_s: float, outputs: float, prompts: float
) -> dict[str, float | None]:
    """USD of a million tokens of answers, and of all tokens; None where no price is known."""
    hourly = usd_per_hour(scenario, pool.deployment.cluster.accelerator.id)
    if hourly is None:
        return {"usd_per_hour": None, "usd_per_1m_output_tokens": None, "usd_per_1m_tokens": None}
    usd = hourly * scenario.cluster.accelerators * span_s / SECONDS_AN_HOUR
    return {
        "usd_per_hour": hourly * scenario.cluster.accelerators,
        "usd_per_1m_output_tokens": usd / outputs * MILLION,
        "usd_per_1m_tokens": usd / (outputs + prompts) * MILLION,
    }
