"""How many cards: the best split of every size of cluster, the whole run on it, and the cheapest that meets its goals.

Sizes are whole nodes, doubled from size to size. A size whose lower bound already misses the deadline or the budget is
not planned; nor is a larger one that cannot be cheaper than what was found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from simulator.documents import InvalidDocument
from simulator.forecast.campaign import usd_per_hour
from simulator.forecast.errors import Refused
from simulator.forecast.fitting import changed
from simulator.forecast.scenario import Campaign, Scenario
from simulator.hardware.library import load_node
from simulator.planner.answer import answer
from simulator.planner.plan import MOST_SIMULATED, explore, prepare
from simulator.planner.search import Search
from simulator.planner.store import Store
from simulator.planner.sweep import Heard
from simulator.planner.workers import Workers
from simulator.units import DAY_S, HOUR_S


def size(
    scenario: Scenario,
    folder: Path,
    store: Store,
    workers: Workers,
    *,
    most: int = MOST_SIMULATED,
    hear: Heard | None = None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The sizes up to `campaign.most_accelerators`, each with its best split and run; *most* simulations a size.

    The keys of `rackcast plan --json` where a range of sizes is asked for. *say* hears which size is looked at. Raise
    :exc:`Refused` where no size can be planned at all, with the reason of each.
    """
    found: list[dict[str, Any]] = []
    for accelerators in _sizes(scenario, folder):
        say(f"{accelerators:,} cards")
        sized = changed(scenario, {"cluster.accelerators": accelerators})
        try:
            search, case = prepare(sized, folder)
        except (Refused, InvalidDocument) as error:
            found.append(_without(accelerators, "not possible", str(error)))
            continue
        reason = _ruled_out(sized, folder, search, found)
        if reason is not None:
            found.append(_without(accelerators, *reason))
            continue
        explore(search, case, store, workers, most=most, hear=hear)
        found.append(_planned(sized, search, store))
    if all(one["verdict"] == "not possible" for one in found):
        raise Refused([f"{one['accelerators']:,} cards: {one['reason']}" for one in found])
    meeting = [one for one in found if one["verdict"] == "meets"]
    best = min(meeting, key=lambda one: (one["usd"]["p50"] or 0.0, one["accelerators"]), default=None)
    asked = _asked(scenario)
    goals = {"tokens": asked.tokens, "within_s": asked.within, "budget_usd": asked.budget_usd}
    return {"scenario": scenario.name, **goals, "winner": best, "sizes": found}


def _sizes(scenario: Scenario, folder: Path) -> Iterator[int]:
    """Whole nodes, twice as many each time, within the range asked for."""
    asked = _asked(scenario)
    assert asked.most_accelerators is not None
    accelerators = load_node(scenario.cluster.node, folder).accelerators
    while accelerators <= asked.most_accelerators:
        if accelerators >= asked.least_accelerators:
            yield accelerators
        accelerators *= 2


def _ruled_out(scenario: Scenario, folder: Path, search: Search, found: list[dict[str, Any]]) -> tuple[str, str] | None:
    """Verdict and reason where no split of this size is worth simulating."""
    asked, accelerators = _asked(scenario), scenario.cluster.accelerators
    least_step_s = search.least_step_s
    if least_step_s is None:
        return "does not fit", "no split fits"
    training = scenario.training
    steps = asked.tokens / (training.global_batch_sequences * training.sequence_length)
    least_s = least_step_s * steps
    if asked.within is not None and least_s > asked.within:
        return "too slow", f"at least {least_s / DAY_S:.3g} days"
    hourly = usd_per_hour(scenario, load_node(scenario.cluster.node, folder).accelerator)
    if hourly is None:
        return ("not needed", "a smaller size meets the goals") if _cheapest(found) is not None else None
    least_usd = hourly * accelerators * least_s / HOUR_S
    if asked.budget_usd is not None and least_usd > asked.budget_usd:
        return "too dear", f"at least {least_usd:,.4g} USD"
    cheapest = _cheapest(found)
    if cheapest is not None and least_usd >= cheapest:
        return "not needed", f"at least {least_usd:,.4g} USD, more than {cheapest:,.4g}"
    return None


def _cheapest(found: list[dict[str, Any]]) -> float | None:
    """USD of the cheapest size that meets the goals so far; 0 where prices are not known, None where there is none."""
    return min((one["usd"]["p50"] or 0.0 for one in found if one["verdict"] == "meets"), default=None)


def _planned(scenario: Scenario, search: Search, store: Store) -> dict[str, Any]:
    """What the winner of *search* makes of the whole run."""
    accelerators = scenario.cluster.accelerators
    if search.winner is None:
        ended = search.survival is not None and search.survival.rows
        reason = f"no split that was simulated {'goes on with nodes lost' if ended else 'fits'}"
        return _without(accelerators, "does not fit", reason)
    run = json.loads(search.rows[search.winner]["campaign"])
    plan = answer(scenario, search, store)
    return {
        "accelerators": accelerators,
        "verdict": f"misses {' and '.join(run['misses'])}" if run["misses"] else "meets",
        "reason": None,
        "split": plan["winner"],
        "complete": plan["complete"],
        **{key: run[key] for key in ("wall_s", "usd", "goodput", "failures")},
        "paid_accelerators": run["accelerators"],
    }


def _without(accelerators: int, verdict: str, reason: str) -> dict[str, Any]:
    keys = ("split", "complete", "wall_s", "usd", "goodput", "failures", "paid_accelerators")
    return {"accelerators": accelerators, "verdict": verdict, "reason": reason, **dict.fromkeys(keys)}


def _asked(scenario: Scenario) -> Campaign:
    assert scenario.campaign is not None
    return scenario.campaign
