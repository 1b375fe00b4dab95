from pathlib import Path

import numpy as np
import pytest
from small_jobs import write_small

from simulator.forecast.fitting import changed, memory_of
from simulator.forecast.forecast import forecast
from simulator.planner.answer import answer
from simulator.planner.case import failed_row
from simulator.planner.pareto import front
from simulator.planner.plan import explore, plan, prepare
from simulator.planner.store import Store
from simulator.planner.workers import workers
from simulator.program.exchanges import exchanges, no_buffer


def test_what_is_pruned_never_wins(tmp_path: Path) -> None:
    # Two cards of a dense model: every one of the splits is simulated, the plan must find the same winner. There are 16
    # as in test_planner_splits.py, two of which have two stages: each of those interleaved and as ZB-H1 as well.
    scenario, folder = write_small(tmp_path)(
        "dense", "cluster.accelerators=2", "parallel.dp_shard=2", "training.global_batch_sequences=2"
    )
    with workers("local", 1) as pool:
        found = plan(scenario, folder, Store(tmp_path / "plan"), pool, most=20)
    search, case = prepare(scenario, folder)
    times = {
        number: forecast(case(number).scenario, folder).summary["step_time_s"]["p50"]
        for number in range(len(search.splits))
    }
    assert len(times) == 20
    assert found["complete"]
    assert found["winner"]["step_time_s"] == min(times.values())
    assert found["counted"]["enumerated"] == 20
    counted = found["counted"]
    assert counted["pruned"] + counted["simulated"] + counted["checked"] + counted["left"] == 20


def test_losers_are_told_what_they_lose_by(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)("mixture", "training.global_batch_sequences=32")
    with workers("local", 1) as pool:
        found = plan(scenario, folder, Store(tmp_path / "plan"), pool, most=4)
    simulated = [split for split in found["splits"] if split["step_time_s"] is not None]
    assert len(simulated) == found["counted"]["simulated"] == 4
    assert simulated[0]["verdict"] == "winner"
    assert simulated[0]["loses_by"] is None
    for loser in simulated[1:]:
        assert loser["step_time_s"] >= simulated[0]["step_time_s"]
        assert loser["loses_by"]["seconds"] > 0
    for other in found["splits"][len(simulated) :]:
        assert other["verdict"] in ("pruned", "left")
        assert other["verdict"] == "left" or other["loses_by"]["at_least"]


def test_the_own_layout_is_simulated_first_with_what_its_cards_leave(tmp_path: Path) -> None:
    own = ("parallel={dp_shard: 8, pp: 2, stage_layers: [3, 1]}", "training.zero=1", "training.recompute=full")
    scenario, folder = write_small(tmp_path)("dense", "training.global_batch_sequences=32", *own)
    search, case = prepare(scenario, folder)
    assert search.own == len(search.splits) - 1
    chosen = search.next(4)
    assert chosen[0] == search.own
    assert len(set(chosen)) == 4
    assert case(search.own).scenario.parallel == scenario.parallel
    on_fewer, _ = prepare(changed(scenario, {"cluster.accelerators": 8}), folder)
    assert on_fewer.own is not None
    split = on_fewer.splits.split(on_fewer.own)
    assert (split.dp_shard, split.pp, split.stage_layers) == (4, 2, (3, 1))
    on_odd, _ = prepare(changed(scenario, {"parallel.pp": 3, "parallel.stage_layers": None}), folder)
    assert on_odd.own is None


def test_the_own_layout_keeps_its_stages_where_others_have_even_ones(tmp_path: Path) -> None:
    own = ("parallel={dp_shard: 8, pp: 2, stage_layers: [3, 1]}", "training.zero=1", "training.recompute={every: 2}")
    read = write_small(tmp_path)
    uneven, _ = prepare(*read("dense", "training.global_batch_sequences=32", *own))
    assert uneven.own is not None
    assert uneven.splits.split(uneven.own).stage_layers == (3, 1)
    even, _ = prepare(*read("dense", "training.global_batch_sequences=32", *own, "parallel.stage_layers=[2, 2]"))
    assert even.own is not None
    assert even.splits.split(even.own).stage_layers == ()
    assert len(uneven.splits) == len(even.splits) + 1


def test_a_split_that_comes_to_be_the_own_layout_is_counted_once(tmp_path: Path) -> None:
    own = ("parallel={dp_shard: 8, pp: 2, stage_layers: [3, 1]}", "training.zero=1", "training.recompute=full")
    scenario, folder = write_small(tmp_path)("dense", "training.global_batch_sequences=32", *own)
    search, _ = prepare(scenario, folder)
    assert search.own is not None
    twin = search.splits.like(search.splits.split(search.own))
    assert twin is not None
    assert twin in search.promising()
    search.splits.share(twin, (3, 1))
    assert search.repeated == [twin]
    assert twin not in search.promising()
    found = answer(scenario, search, Store(tmp_path / "plan"))
    assert found["counted"]["enumerated"] == len(search.splits) - 1
    assert found["counted"]["left"] == int(search.fitting.sum()) - 1


def test_no_plan_is_slower_than_the_layout_that_it_was_asked_about(tmp_path: Path) -> None:
    own = ("parallel={dp_shard: 8, pp: 2, stage_layers: [3, 1]}", "training.zero=1")
    scenario, folder = write_small(tmp_path)("dense", "training.global_batch_sequences=32", *own)
    with workers("local", 1) as pool:
        found = plan(scenario, folder, Store(tmp_path / "plan"), pool, most=3)
    mine = forecast(scenario, folder).summary["step_time_s"]["p50"]
    assert [split["step_time_s"] for split in found["splits"] if split["own"]] == [mine]
    assert found["winner"]["step_time_s"] <= mine


def test_a_plan_goes_on_where_it_ended(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)("dense", "training.global_batch_sequences=16")
    with workers("local", 1) as pool:
        first = plan(scenario, folder, Store(tmp_path / "plan"), pool, most=3)
        store = Store(tmp_path / "plan")
        assert len(store.rows) == first["counted"]["simulated"] == 3
        assert plan(scenario, folder, store, pool, most=3) == first
        assert plan(scenario, folder, store, pool, most=5)["counted"]["simulated"] == 5
    assert len(Store(tmp_path / "plan").rows) == 5


def test_what_is_done_of_a_plan_never_becomes_less(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)("dense", "training.global_batch_sequences=16")
    heard: list[tuple[int, int, float | None]] = []
    with workers("local", 1) as pool:
        found = plan(scenario, folder, Store(tmp_path / "plan"), pool, most=6, hear=lambda *told: heard.append(told))
    done = [told[0] for told in heard]
    assert done == sorted(done)
    assert done[-1] == found["counted"]["simulated"] + found["counted"]["checked"]
    assert all(told[0] <= told[1] for told in heard)


def test_what_is_tight_is_simulated_where_nothing_fits(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)("dense", "training.global_batch_sequences=16")
    search, case = prepare(scenario, folder)
    store = Store(tmp_path / "plan")
    for number in range(len(search.splits)):
        known = case(number, ("fits",))
        store.rows[known.key] = failed_row(known.key, known.settings, None) | {"verdict": "tight", "peak_bytes": 1.0}
    first = search.next(1)
    with workers("local", 1) as pool:
        explore(search, case, store, pool, most=1)
    assert [*search.rows] == first
    assert search.winner == first[0]
    assert search.simulated == 1


def test_what_is_tight_loses_to_what_fits_unsimulated(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)("dense", "training.global_batch_sequences=16")
    search, _ = prepare(scenario, folder)
    row = failed_row("a", "{}", None) | {"verdict": "fits", "step_time_s": 1.0, "peak_bytes": 1.0, "time": "{}"}
    search.learn({0: row, 1: failed_row("b", "{}", None) | {"verdict": "tight", "peak_bytes": 2.0}})
    assert (search.winner, search.tight, search.simulated) == (0, [1], 1)
    _, tight, *_ = answer(scenario, search, Store(tmp_path / "plan"))["splits"]
    assert (tight["verdict"], tight["step_time_s"], tight["pareto"]) == ("tight", None, False)
    assert tight["loses_by"] == {"term": "reserved memory", "bytes": None, "at_least": False}


def test_a_job_that_fits_nowhere_has_no_winner(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)("dense")
    huge = changed(scenario, {"model": "llama-3.1-405b", "cluster.accelerators": 8})
    with workers("local", 1) as pool:
        found = plan(huge, folder, Store(tmp_path / "plan"), pool)
    assert found["winner"] is None
    assert found["counted"]["pruned"] == found["counted"]["enumerated"] > 0
    assert {split["loses_by"]["term"] for split in found["splits"]} == {"memory"}


def test_without_a_winner_all_that_may_fit_are_left(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)("mixture", "training.global_batch_sequences=32")
    search, _ = prepare(scenario, folder)
    found = answer(scenario, search, Store(tmp_path / "plan"))
    assert found["winner"] is None
    assert found["counted"]["left"] == int(search.fitting.sum()) > 0
    assert {(split["verdict"], split["loses_by"]) for split in found["splits"] if split["verdict"] == "left"} == {
        ("left", None)
    }


def test_ways_that_send_a_token_as_often_hold_the_same_memory(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)(
        "mixture", "training.zero=1", "parallel.ep=8", "routing.synthetic.sigma=0.5"
    )
    peaks = {
        way: memory_of(changed(scenario, {"training.exchange": way}), folder).summary()["hbm"]["peak_bytes"]
        for way, how in exchanges().items()
        if how.buffer_bytes is no_buffer and how.once
    }
    assert len(peaks) == 2
    assert len(set(peaks.values())) == 1


def test_what_does_not_fit_rules_out_other_ways_of_exchange(tmp_path: Path) -> None:
    scenario, folder = write_small(tmp_path)("mixture", "training.global_batch_sequences=32")
    search, _ = prepare(scenario, folder)
    number = int(np.flatnonzero(search.fitting & (search.splits["ep"] > 1) & (search.splits["exchange"] == 1))[0])
    fitted = int(search.fitting.sum())
    search.learn({number: {"verdict": "does not fit", "peak_bytes": 2 * search.capacity_bytes}})
    alike = search.splits.alike(number, but="exchange")
    assert {search.splits.split(int(one)).exchange for one in alike} == {0, 1, 2}
    assert not search.fitting[alike[search.splits["exchange"][alike] > 0]].any()
    assert fitted - int(search.fitting.sum()) == 2


@pytest.mark.parametrize(
    ("candidates", "on_the_front"),
    [
        ([(0, 1.0, 5.0), (1, 2.0, 3.0), (2, 3.0, 4.0)], [0, 1]),
        ([(0, 1.0, 1.0), (1, 1.0, 1.0)], [0, 1]),
        ([], []),
    ],
)
def test_the_front_holds_what_nothing_beats(candidates: list[tuple[float, ...]], on_the_front: list[int]) -> None:
    assert front(candidates) == on_the_front
