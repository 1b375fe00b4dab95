import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.engine.task import Allocation, Task
from simulator.forecast.forecast import forecast
from simulator.forecast.holders import holders

WEIGHTS = Allocation("weights", "parameters", 10.0)


def task(name: str, layer: int, takes: list[Allocation], gives: tuple[str, ...] = ()) -> Task:
    return Task(name, "compute", "gemm", 1, layer=layer, allocates=tuple(takes), releases=gives)


def test_tensors_that_tasks_of_one_name_took_are_told_together() -> None:
    saved = [Allocation(f"a{n}", "saved activations", np.array([4.0, 1.0])) for n in range(3)]
    program = [
        task("qkv", 0, [saved[0]]),
        task("qkv", 1, [saved[1], Allocation("scratch", "workspace", 7.0)], ("scratch",)),
        task("up", 1, [saved[2]], ("a0", "a1", "a2")),
    ]
    ledger = account(program, [WEIGHTS], 2)["hbm"]
    # The first behaviour's 10 + 4 + 4 + 7 are its peak: the workspace is gone before the last tensor.
    assert ledger.peak_bytes[0] == 25
    found = holders(program, [WEIGHTS], ledger, 0)
    assert [(one.kind, one.task, one.tensors, one.bytes) for one in found] == [
        ("parameters", "", 1, 10.0),
        ("saved activations", "qkv", 2, 8.0),
        ("workspace", "qkv", 1, 7.0),
    ]
    assert (found[1].first_layer, found[1].last_layer, found[0].phase) == (0, 1, "resident")


@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_they_add_up_to_the_peak(small: Small, kind: str) -> None:
    swap = ("training.recompute=full", "training.swap.operators={attention: 1.0}")
    program = lower(small(kind, *swap))
    for ledger in account(program.tasks, [*program.resident, *program.born], 1).values():
        found = holders(program.tasks, [*program.resident, *program.born], ledger, 0)
        assert sum(one.bytes for one in found) == pytest.approx(float(ledger.peak_bytes[0]))


def test_the_summary_tells_of_each_tier(small: Small) -> None:
    memory = forecast(*small("dense", "training.swap.operators={down: 1.0}")).summary["memory"]
    (down,) = memory["ddr"]["made_of"]
    assert (down["task"], down["tensors"], down["first_layer"], down["last_layer"]) == ("down out", 4, 0, 3)
    assert down["bytes"] == 4 * 2048 * 4096 * 2
    assert memory["hbm"]["made_of"][0]["phase"] in ("resident", "forward", "backward")
