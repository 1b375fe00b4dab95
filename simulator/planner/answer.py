"""The answer of a plan: the winner, what the others lose by, and how many splits were ruled out."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.forecast.scenario import Scenario
from simulator.planner.bounds import TERMS
from simulator.planner.case import Row
from simulator.planner.pareto import front
from simulator.planner.records import MOST_BYTES
from simulator.planner.search import Search
from simulator.planner.splits import NO_OVERLAP, RECOMPUTE, SCHEDULES, WAYS
from simulator.planner.store import Store
from simulator.units import human_bytes

MOST_LISTED = 200
"""Splits that were not simulated and are listed all the same, the most promising first."""


def answer(scenario: Scenario, search: Search, store: Store) -> dict[str, Any]:
    """The keys of `rackcast plan --json`: the winner first, then the simulated by time, then the others by bound."""
    winner, left = search.winner, search.left()
    simulated = sorted(search.rows, key=lambda number: _rank(search.rows[number], number == winner))
    others = np.setdiff1d(np.arange(len(search.splits)), [*simulated, *search.repeated])
    listed = _most_promising(search, others)
    usable = [n for n in simulated if search.rows[n]["step_time_s"] and _fits(search.rows[n]) and search.goes_on(n)]
    pareto = set(front([(number, *_goods(search.rows[number])) for number in usable]))
    may_win = set(left.tolist())
    return {
        "scenario": scenario.name,
        "accelerators": scenario.cluster.accelerators,
        "winner": None if winner is None else _simulated(search, winner, pareto),
        "own_among_splits": search.own is not None,
        "complete": not len(left),
        "may_be_faster_by": _gap(search, left),
        "splits": [
            *(_simulated(search, number, pareto) for number in simulated),
            *(_not_simulated(search, number, number in may_win) for number in listed),
        ],
        "counted": {
            "enumerated": len(simulated) + len(others),
            "pruned": len(others) - len(left),
            "pruned_for_memory": int((~np.delete(search.fitting, search.repeated)).sum()),
            "checked": len(search.rows) - search.simulated,
            "simulated": search.simulated,
            "left": len(left),
            "too_large_to_simulate": int((search.records_bytes[left] > MOST_BYTES).sum()),
        },
        "file": str(store.file),
    }


def _most_promising(search: Search, numbers: npt.NDArray[np.int64]) -> list[int]:
    """Those of candidates that are listed, by their closest bounds: first what may fit."""

    def in_order(some: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.asarray(some[np.lexsort((search.bound.step_s[some], ~search.fitting[some]))])

    listed = in_order(numbers)[:MOST_LISTED]
    while search.bounds.sharpen(listed):
        pass
    return [int(number) for number in in_order(listed)]


def _simulated(search: Search, number: int, pareto: set[int]) -> dict[str, Any]:
    row = search.rows[number]
    best = search.rows[search.winner] if search.winner is not None else None
    return {
        **_said(search, number),
        "step_time_s": row["step_time_s"],
        "peak_bytes": row["peak_bytes"],
        "usd": row["usd_per_step"],
        "verdict": _verdict(search, number),
        "survives": _survives(search, number),
        "pareto": number in pareto,
        "loses_by": _lost(search, number) or _loses_by(row, best, search.capacity_bytes),
        "error": row["error"],
    }


def _not_simulated(search: Search, number: int, may_win: bool) -> dict[str, Any]:
    return {
        **_said(search, number),
        "step_time_s": None,
        "peak_bytes": None,
        "usd": None,
        "verdict": "left" if may_win else "pruned",
        "survives": None,
        "pareto": False,
        "loses_by": None if may_win else _bounded_loss(search, number),
    }


def _verdict(search: Search, number: int) -> str:
    if number == search.winner:
        return "winner"
    if search.survival is not None and search.survival.fails(number):
        return "failed" if search.survival.rows[number]["verdict"] == "failed" else "does not survive"
    return str(search.rows[number]["verdict"])


def _lost(search: Search, number: int) -> dict[str, Any] | None:
    """Why a split does not go on when nodes are lost."""
    if search.survival is None or not search.survival.fails(number):
        return None
    row = search.survival.rows[number]
    room = f"{human_bytes(row['peak_bytes'])} a card" if row["peak_bytes"] is not None else None
    return {"term": "nodes lost", "message": row["error"] or f"needs {room}", "at_least": False}


def _survives(search: Search, number: int) -> dict[str, Any] | None:
    """What becomes of a split when nodes are lost, where that was forecast."""
    if search.survival is None or number not in search.survival.rows:
        return None
    row = search.survival.rows[number]
    settings = json.loads(row["settings"])
    return {
        "accelerators_left": search.survival.left,
        "accelerators": settings["cluster.accelerators"],
        "parallel": settings["parallel"],
        **{name: row[name] for name in ("verdict", "step_time_s", "peak_bytes", "error")},
    }


def _said(search: Search, number: int) -> dict[str, Any]:
    """What is known of every split."""
    split = search.splits.split(number)
    return {
        "parallel": split.degrees,
        "zero": split.zero,
        "recompute": (*RECOMPUTE, search.own_recompute)[split.recompute],
        "micro_batch_sequences": split.micro_batch_sequences,
        "pipeline_schedule": SCHEDULES[split.schedule],
        "virtual_pipeline": split.virtual_pipeline,
        "stage_layers": list(split.stage_layers) or None,
        "own": number == search.own,
        "overlap_exchanges": split.overlap != NO_OVERLAP,
        "exchange": WAYS[split.exchange],
        "step_time_at_least_s": float(search.bound.step_s[number]),
        "peak_at_least_bytes": float(search.bound.peak_bytes[number]),
    }


def _loses_by(row: Row, best: Row | None, capacity_bytes: float) -> dict[str, Any] | None:
    """The part of the step that costs a simulated split most against the *best*, or the memory it lacks."""
    if row["error"] is not None:
        return {"term": "failed", "message": row["error"]}
    if row["peak_bytes"] > capacity_bytes:
        return {"term": "memory", "bytes": row["peak_bytes"] - capacity_bytes, "at_least": False}
    if row["step_time_s"] is None:
        return {"term": "reserved memory", "bytes": None, "at_least": False}
    if best is None or row["key"] == best["key"]:
        return None
    mine, theirs = json.loads(row["time"]), json.loads(best["time"])
    more = {term: seconds - theirs.get(term, 0.0) for term, seconds in mine.items()}
    term = max(more, key=lambda name: more[name])
    if row["step_time_s"] <= best["step_time_s"]:
        return {"term": "reserved memory", "bytes": None, "at_least": False}
    return {"term": term, "seconds": more[term], "at_least": False}


def _bounded_loss(search: Search, number: int) -> dict[str, Any]:
    """The memory that a pruned split lacks, or the term of its bound that costs it most against the winner's."""
    lacking = float(search.bound.peak_bytes[number]) - search.capacity_bytes
    if lacking > 0:
        return {"term": "memory", "bytes": lacking, "at_least": True}
    assert search.winner is not None
    more = search.bound.terms[:, number] - search.bound.terms[:, search.winner]
    return {"term": TERMS[int(more.argmax())], "seconds": float(more.max()), "at_least": True}


def _gap(search: Search, left: npt.NDArray[np.int64]) -> float:
    """Share of the winner's step by which a split that is left may be faster at most."""
    if not len(left) or search.winner is None:
        return 0.0
    return float(1 - search.bound.step_s[left[0]] / search.rows[search.winner]["step_time_s"])


def _rank(row: Row, wins: bool) -> tuple[bool, bool, float]:
    return not wins, not _fits(row), row["step_time_s"] or np.inf


def _fits(row: Row) -> bool:
    return row["verdict"] in ("fits", "tight")


def _goods(row: Row) -> tuple[float, ...]:
    """What should be small: seconds, USD, bytes."""
    return row["step_time_s"], row["usd_per_step"] or 0.0, row["peak_bytes"]
