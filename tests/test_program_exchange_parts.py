"""Rows that go to experts in parts: four layers on two nodes of eight H200, 16 experts."""

import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.task import Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast

FAR = ("parallel.ep=16", "training.sequence_length=8192")
TWO = "training.exchange_parts=2"
INNER = ["sort_by_expert", "experts_fc1", "experts_activation", "experts_fc2", "sort_by_source"]


def positions(tasks: list[Task], name: str, phase: str) -> list[int]:
    """Of the tasks of that name in the first layer."""
    return [n for n, task in enumerate(tasks) if (task.name, task.phase, task.layer) == (name, phase, 0)]


def test_a_part_is_computed_while_another_travels(small: Small) -> None:
    tasks = lower(small("mixture", *FAR, TWO)).tasks
    sent, home = (positions(tasks, name, "forward") for name in ("dispatch", "combine"))
    names = [task.name for task in tasks[sent[0] : home[1] + 1]]
    assert names == ["dispatch", "dispatch", *INNER, "combine", *INNER, "combine"]
    # Both parts are sent at once; each is computed when its own rows are there, and goes home by itself.
    assert tasks[sent[0]].deps == tasks[sent[1]].deps
    assert [tasks[n].deps for n in positions(tasks, "sort_by_expert", "forward")] == [(n,) for n in sent]
    assert [tasks[n].deps for n in home] == [(n,) for n in positions(tasks, "sort_by_source", "forward")]
    assert tasks[positions(tasks, "unpermute", "forward")[0]].deps == tuple(home)


def test_gradients_go_the_same_way_back(small: Small) -> None:
    tasks = lower(small("mixture", *FAR, TWO)).tasks
    sent, home = (positions(tasks, name, "backward") for name in ("combine", "dispatch"))
    names = [task.name for task in tasks[sent[0] : home[1] + 1]]
    assert names == ["combine", "combine", *reversed(INNER), "dispatch", *reversed(INNER), "dispatch"]
    assert [tasks[n].deps for n in positions(tasks, "sort_by_source", "backward")] == [(n,) for n in sent]


def test_parts_carry_all_bytes_and_compute_all_rows(small: Small) -> None:
    whole, parts = (lower(small("mixture", *FAR, *more)).tasks for more in ((), (TWO,)))

    def moved(tasks: list[Task]) -> float:
        return sum(float(np.mean(tasks[n].collective.wire_bytes)) for n in positions(tasks, "dispatch", "forward"))

    def computed(tasks: list[Task]) -> int:
        return sum(int(np.max(tasks[n].duration_ns)) for n in positions(tasks, "experts_fc1", "forward"))

    assert moved(parts) == pytest.approx(moved(whole))
    # Fewer rows at once are computed at a lower rate.
    assert computed(whole) < computed(parts) < 1.5 * computed(whole)


@pytest.mark.parametrize("recompute", ["none", "full", "{modules: [moe_act]}"])
def test_exchanges_are_hidden_and_memory_is_that_of_whole_rows(small: Small, recompute: str) -> None:
    again = f"training.recompute={recompute}"
    whole, parts = (forecast(*small("mixture", *FAR, again, *more)).summary for more in ((), (TWO,)))
    assert parts["time"]["exposed_all_to_all_s"] < 0.75 * whole["time"]["exposed_all_to_all_s"]
    assert parts["memory"]["hbm"]["peak_bytes"] == whole["memory"]["hbm"]["peak_bytes"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("parallel.ep=1",), "but ep is 1 and nothing is exchanged; allowed: 1, or ep above 1"),
        (("parallel.ep=8", "parallel.etp=2"), "and etp 2 gathers rows that have come, whole; allowed: etp 1"),
        (
            ("parallel.ep=8", "training.swap={operators: {experts_fc1: 1.0}}"),
            "and copies of activations beside parts are not simulated; allowed: no offload, no swap",
        ),
        (
            ("parallel.ep=8", "training.zero=1", "training.execution=fused"),
            "and Megatron-LM sends rows whole; allowed: 1, another execution, or zero 2 or FSDP2",
        ),
    ],
)
def test_what_does_not_go_with_parts(small: Small, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refused) as caught:
        assemble_job(*small("mixture", TWO, *overrides))
    told = [one.partition(", ")[2] for one in caught.value.messages if "exchange_parts" in one]
    assert told == [message]
