"""The plan: all splits of a job bounded, the most promising simulated, every loser told what it loses by.

Bounds are rough at first and sharpened where they do not rule a split out. The scenario's own layout is simulated
first where it is one of them, so that nothing slower is recommended. Then splits are simulated in the order of their
bounds, at once only such as differ in more than their schedule and exchange. Once the next bound is no lower than the
fastest simulated step, no split that is left can win: the search is complete, and what simulations are left go to
splits that may take less memory. Where there are not enough simulations, what is left may still be faster, by as much
as the answer says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from simulator.forecast.errors import Refused
from simulator.forecast.fitting import changed
from simulator.forecast.image_batches import ImageBatches
from simulator.forecast.scenario import Scenario, Training
from simulator.forecast.scenario_memory import Swap
from simulator.planner.answer import answer
from simulator.planner.candidates import candidates, for_any_sharding, job_of_any_split, settings_of
from simulator.planner.case import Case, Verdicts, data_version, make_case
from simulator.planner.expert_rows import ExpertRows
from simulator.planner.own_layout import with_own_layout
from simulator.planner.records import records_bytes
from simulator.planner.search import Search
from simulator.planner.sharpening import Sharpening
from simulator.planner.split_prices import SplitPrices
from simulator.planner.splits import Splits
from simulator.planner.store import Store
from simulator.planner.survival import Survival, cards_left, shrunk, surviving
from simulator.planner.sweep import Heard, run_cases
from simulator.planner.workers import Workers


class CaseOf(Protocol):
    """Makes the case of a candidate by its number, simulated only where its memory comes to one of some verdicts."""

    def __call__(self, number: int, only: Verdicts = ()) -> Case:
        """The case."""


AT_ONCE = 4
"""Splits that are simulated before the next bounds are looked at: the same whatever the number of workers."""
MOST_SIMULATED = 8
MOST_CHECKED = 4
"""Splits whose memory is accounted for, for each one that may be simulated: those that fail there fail fast."""


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
    case: CaseOf,
    store: Store,
    workers: Workers,
    *,
    most: int = MOST_SIMULATED,
    hear: Heard | None = None,
) -> None:
    """Simulate candidates of *search*, at most *most*, until none that is left can win.

    What is tight counts among them, and is simulated where nothing else fits.
    """
    progress = _Progress(hear)

    def run(chosen: list[int], only: Verdicts, ahead: int) -> None:
        cases = {number: case(number, only) for number in chosen}
        found = run_cases(cases.values(), store, workers, progress.of_round(ahead))
        search.learn({number: found[made.key] for number, made in cases.items()})
        _lose_nodes(search, store, workers)

    while (ahead := most - search.simulated - len(search.tight)) > 0 and len(search.rows) < MOST_CHECKED * most:
        chosen = search.next(min(AT_ONCE, ahead))
        if not chosen:
            break
        run(chosen, ("fits",), ahead)
    while search.winner is None and search.tight and search.simulated < most:
        left = min(len(search.tight), most - search.simulated)
        run(search.tight[: min(AT_ONCE, left)], (), left)
    store.join()


def _lose_nodes(search: Search, store: Store, workers: Workers) -> None:
    """Forecast the winner with nodes lost, and if that does not go on, the next, until one does."""
    survival = search.survival
    while survival is not None and (winner := search.winner) is not None and winner not in survival.rows:
        case = survival.case(winner)
        survival.rows[winner] = run_cases([case], store, workers)[case.key]


def prepare(scenario: Scenario, folder: Path) -> tuple[Search, CaseOf]:
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

    def case(number: int, only: Verdicts = ()) -> Case:
        settings = settings_of(splits.split(number), scenario.training)
        return make_case(changed(scenario, settings), folder, settings, version, only=only)

    def case_left(number: int) -> Case:
        assert left is not None
        split = shrunk(splits.split(number), left, scenario.training.global_batch_sequences, node)
        assert split is not None
        settings = settings_of(split, scenario.training) | {"cluster.accelerators": split.ranks}
        left_over = changed(scenario, settings | {"campaign": None})
        return make_case(left_over, folder, settings, version, only=("fits", "tight"))

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


class _Progress:
    """Tells rounds of forecasts as one course, in which what is done never becomes less.

    What does not fit leaves its place to another one: there are more forecasts then than were meant to be.
    """

    def __init__(self, hear: Heard | None) -> None:
        self._hear = hear
        self._done = 0

    def of_round(self, ahead: int) -> Heard | None:
        """What hears of the next round, when *ahead* forecasts are to come at most if all of them fit."""
        if self._hear is None:
            return None
        hear, before, most = self._hear, self._done, self._done + ahead

        def told(finished: int, total: int, left_s: float | None) -> None:
            self._done = before + finished
            of_all = (most - self._done) / (total - finished) if finished < total else 0.0
            hear(self._done, most, None if left_s is None else left_s * of_all)

        return told
