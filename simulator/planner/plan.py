"""The plan: all splits of a job bounded, the most promising simulated, every loser told what it loses by.

Bounds are rough at first and sharpened where they do not rule a split out. The scenario's own layout is simulated
first where it is one of them, so that nothing slower is recommended. Then splits are simulated in the order of their
bounds, at once only such as differ in more than their schedule and exchange. Once the next bound is no lower than the
fastest simulated step, no split that is left can win: the search is complete, and what simulations are left go to
splits that may take less memory. Where there are not enough simulations, what is left may still be faster, by as much
as the answer says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.forecast.errors import Refused
from simulator.forecast.fitting import changed
from simulator.forecast.image_batches import ImageBatches
from simulator.forecast.scenario import Scenario, Training
from simulator.forecast.scenario_memory import Swap
from simulator.planner.bounds import TERMS
from simulator.planner.candidates import candidates, for_any_sharding, job_of_any_split, settings_of
from simulator.planner.case import Case, Row, data_version, make_case
from simulator.planner.expert_rows import ExpertRows
from simulator.planner.own_layout import with_own_layout
from simulator.planner.pareto import front
from simulator.planner.records import MOST_BYTES, records_bytes
from simulator.planner.search import Search
from simulator.planner.sharpening import Sharpening
from simulator.planner.split_prices import SplitPrices
from simulator.planner.splits import NO_OVERLAP, RECOMPUTE, SCHEDULES, WAYS, Splits
from simulator.planner.store import Store
from simulator.planner.survival import Survival, cards_left, shrunk, surviving
from simulator.planner.sweep import Heard, run_cases
from simulator.planner.workers import Workers
from simulator.units import human_bytes

AT_ONCE = 4
"""Splits that are simulated before the next bounds are looked at: the same whatever the number of workers."""
MOST_SIMULATED = 8
MOST_CHECKED = 4
"""Splits whose memory is accounted for, for each one that may be simulated: those that fail there fail fast."""
MOST_LISTED = 200
"""Splits that were not simulated and are listed all the same, the most promising first."""


def plan(
    scenario: Scenario,
    folder: Path,
    store: Store,
    workers: Workers,
    *,
    most: int = MOST_SIMULATED,
    hear: Heard | None = None,
) -> dict[str, Any]:
    """Rank the splits of *scenario*, with at most *most* simulations.

    The keys of `rackcast plan --json`. Finished simulations are taken from *store* and put there. Raise
    :exc:`simulator.forecast.errors.Refused` for input that does not go together.
    """
    search, case = prepare(scenario, folder)
    explore(search, case, store, workers, most=most, hear=hear)
    return answer(scenario, search, store)


def explore(
    search: Search,
    case: Callable[[int], Case],
    store: Store,
    workers: Workers,
    *,
    most: int = MOST_SIMULATED,
    hear: Heard | None = None,
) -> None:
    """Simulate candidates of *search*, at most *most*, until none that is left can win."""
    while search.simulated < most and len(search.rows) < MOST_CHECKED * most:
        chosen = search.next(min(AT_ONCE, most - search.simulated))
        if not chosen:
            break
        cases = {number: case(number) for number in chosen}
        found = run_cases(cases.values(), store, workers, hear and _among(hear, search.simulated, most))
        search.learn({number: found[made.key] for number, made in cases.items()})
        _lose_nodes(search, store, workers)
    store.join()


def _lose_nodes(search: Search, store: Store, workers: Workers) -> None:
    """Forecast the winner with nodes lost, and if that does not go on, the next, until one does."""
    survival = search.survival
    while survival is not None and (winner := search.winner) is not None and winner not in survival.rows:
        case = survival.case(winner)
        survival.rows[winner] = run_cases([case], store, workers)[case.key]


def prepare(scenario: Scenario, folder: Path) -> tuple[Search, Callable[[int], Case]]:
    """All candidates with their bounds, and what makes a case of one of them."""
    if problems := list(_unbounded(scenario.training)):
        raise Refused(problems)
    asked, scenario = scenario, for_any_sharding(scenario)
    job = job_of_any_split(scenario, folder)
    if len(job.micro_batches) > 1 or job.micro_batches[0].lengths:
        raise Refused(
            [
                "plan: bounds of splits know micro-batches and ranks that are alike; leave out training.sequences, "
                "routing.drift_between and W4_source_ragged, or try splits one by one with `rackcast compare --over`"
            ]
        )
    splits, left, node = candidates(scenario, job), cards_left(scenario, job.cluster), job.cluster.node.accelerators
    if left is not None:
        splits = _that_survive(splits, scenario, left, node)
    splits, own = with_own_layout(splits, asked, job)
    experts = ExpertRows(scenario, folder, job.architecture, job.cluster) if job.routing is not None else None
    images = ImageBatches(scenario, job.architecture) if job.images is not None else None
    prices = SplitPrices(job, experts, images)
    bounds = Sharpening(splits, job, prices, scenario.training.global_batch_sequences)
    version = data_version(folder)

    def case(number: int) -> Case:
        settings = settings_of(splits.split(number), scenario.training)
        return make_case(changed(scenario, settings), folder, settings, version, if_it_fits=True)

    def case_left(number: int) -> Case:
        assert left is not None
        split = shrunk(splits.split(number), left, scenario.training.global_batch_sequences, node)
        assert split is not None
        settings = settings_of(split, scenario.training) | {"cluster.accelerators": split.ranks}
        return make_case(changed(scenario, settings | {"campaign": None}), folder, settings, version, if_it_fits=True)

    survival = Survival(left, case_left) if left is not None else None
    records = records_bytes(splits, len(job.architecture.layers), scenario.training.global_batch_sequences)
    capacity_bytes = job.cluster.accelerator.hbm_capacity_bytes
    return Search(splits, bounds, capacity_bytes, records, str(job.recompute), own, survival), case


def _that_survive(splits: Splits, scenario: Scenario, left: int, node: int) -> Splits:
    """Those of *splits* that can go on with as many cards as are *left*, *node* in each node."""
    batch, asked = scenario.training.global_batch_sequences, scenario.campaign
    some = splits.only(surviving(splits, left, batch, node))
    if not len(some):
        assert asked is not None
        raise Refused(
            [
                f"campaign.survive_nodes: found {asked.survive_nodes} with {asked.spare_nodes} spare nodes, but no "
                f"split goes on with the {left} cards left and the same batch of {batch} sequences; allowed: "
                f"campaign.spare_nodes {asked.survive_nodes}, or a batch that fewer ranks divide"
            ]
        )
    return some


def _unbounded(training: Training) -> Iterator[str]:
    """What of *training* has no bounds that splits could be ruled out by."""
    if training.swap != Swap():
        yield "training.swap: bounds of splits do not know what it saves; leave it out, and try it on the best"
    if training.fsdp.micro_batches_per_gather > 1:
        yield (
            "training.fsdp.micro_batches_per_gather: bounds of splits count a gather for every micro-batch; leave it "
            "out, and try it on the best"
        )
    if training.zero == 2 and training.offload.optimizer:
        yield "training.offload.optimizer: bounds of splits do not know ZeRO-2's on the host; leave it out, or zero 3"
    if training.cuda_graphs:
        yield "training.cuda_graphs: kernels of graphs have no bound that splits could be ruled out by; leave it out"


def answer(scenario: Scenario, search: Search, store: Store) -> dict[str, Any]:
    """The keys of `rackcast plan --json`: the winner first, then the simulated by time, then the others by bound."""
    winner, left = search.winner, search.left()
    simulated = sorted(search.rows, key=lambda number: _rank(search.rows[number], number == winner))
    others = np.setdiff1d(np.arange(len(search.splits)), [*simulated, *search.repeated])
    listed = _most_promising(search, others)
    usable = [number for number in simulated if _fits(search.rows[number]) and search.goes_on(number)]
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


def _among(hear: Heard, done: int, most: int) -> Heard:
    """Tell progress of a round as progress of at most *most* simulations."""

    def told(finished: int, total: int, left_s: float | None) -> None:
        pace = None if left_s is None or finished >= total else left_s / (total - finished) * (most - done - finished)
        hear(done + finished, most, pace)

    return told
