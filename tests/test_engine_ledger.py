import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.ledger import UnbalancedProgramError, account
from simulator.engine.task import Allocation, Quantity, Task


def task(*takes: Allocation, frees: tuple[str, ...] = ()) -> Task:
    return Task("work", "compute", "gemm", 1, allocates=takes, releases=frees)


def test_a_peak_by_hand() -> None:
    program = [
        task(Allocation("x", "activations", 10.0)),
        task(Allocation("y", "activations", 5.0), Allocation("w", "workspace", 3.0), frees=("x", "w")),
        task(Allocation("z", "activations", 12.0), frees=("y", "z")),
    ]
    ledger = account(program, [Allocation("p", "parameters", 100.0)], 1)["hbm"]
    # 100, 110, 115, 118, then 105, 117 and back to 100.
    assert ledger.peak_bytes.tolist() == [118.0]
    assert ledger.peak_task(0) == 1
    assert ledger.breakdown(0) == {"parameters": 100.0, "activations": 15.0, "workspace": 3.0}
    assert ledger.left_bytes.tolist() == [0.0]


def test_what_a_task_releases_is_gone_before_the_next_takes() -> None:
    program = [task(Allocation("x", "a", 10.0), frees=("x",)), task(Allocation("y", "a", 10.0), frees=("y",))]
    assert account(program, [], 1)["hbm"].peak_bytes.tolist() == [10.0]


def test_what_a_task_takes_comes_before_what_it_releases() -> None:
    program = [task(Allocation("x", "a", 10.0)), task(Allocation("y", "a", 10.0), frees=("x", "y"))]
    assert account(program, [], 1)["hbm"].peak_bytes.tolist() == [20.0]


def test_each_behaviour_has_its_own_peak() -> None:
    program = [
        task(Allocation("x", "tokens", np.array([10.0, 40.0])), Allocation("w", "workspace", 5.0), frees=("x",)),
        task(Allocation("y", "buffer", 20.0), frees=("w", "y")),
    ]
    ledger = account(program, [], 2)["hbm"]
    assert ledger.peak_bytes.tolist() == [25.0, 45.0]
    assert [ledger.peak_task(0), ledger.peak_task(1)] == [1, 0]
    assert ledger.breakdown(0) == {"buffer": 20.0, "workspace": 5.0}
    assert ledger.breakdown(1) == {"tokens": 40.0, "workspace": 5.0}
    assert ledger.left_bytes.tolist() == [0.0, 0.0]


def test_tiers_are_accounted_apart() -> None:
    program = [task(Allocation("x", "a", 10.0), Allocation("h", "a", 7.0, tier="ddr"), frees=("x", "h"))]
    ledgers = account(program, [], 1)
    assert {tier: ledger.peak_bytes.tolist() for tier, ledger in ledgers.items()} == {"hbm": [10.0], "ddr": [7.0]}


def test_resident_memory_alone_has_its_peak_before_the_first_task() -> None:
    ledger = account([task()], [Allocation("p", "parameters", 64.0)], 2)["hbm"]
    assert (ledger.peak_bytes.tolist(), ledger.peak_task(0)) == ([64.0, 64.0], -1)


def test_what_is_never_released_is_told() -> None:
    ledger = account([task(Allocation("x", "a", 10.0))], [Allocation("p", "parameters", 64.0)], 2)["hbm"]
    assert ledger.left_bytes.tolist() == [10.0, 10.0]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ([task(Allocation("x", "a", 1.0)), task(Allocation("x", "a", 1.0))], "task 1 .work. takes 'x', held already"),
        ([task(frees=("x",))], "task 0 .work. releases 'x', which is not held"),
        ([task(Allocation("x", "a", 1.0), frees=("x", "x"))], "task 0 .work. releases 'x', which is not held"),
    ],
)
def test_a_key_taken_twice_or_released_unheld_raises(program: list[Task], message: str) -> None:
    with pytest.raises(UnbalancedProgramError, match=message):
        account(program, [], 1)


@st.composite
def balanced_programs(draw: st.DrawFn) -> list[Task]:
    """Tasks that take and release in any order, and at last release all they hold; whole bytes, two behaviours."""
    held: list[str] = []
    program = []
    for number in range(draw(st.integers(1, 10))):
        takes = []
        for part in range(draw(st.integers(0, 3))):
            sizes = draw(st.lists(st.integers(0, 1000), min_size=2, max_size=2))
            size: Quantity = np.array(sizes, float) if draw(st.booleans()) else float(sizes[0])
            takes.append(Allocation(f"{number}.{part}", draw(st.sampled_from(["a", "b"])), size))
        held += [allocation.key for allocation in takes]
        frees = tuple(draw(st.lists(st.sampled_from(held), unique=True))) if held else ()
        held = [key for key in held if key not in frees]
        program.append(task(*takes, frees=frees))
    return [*program, task(frees=tuple(held))]


@given(balanced_programs())
def test_memory_is_never_negative_its_peak_is_its_highest_level_and_all_is_freed(program: list[Task]) -> None:
    for behaviour in range(2):
        sizes: dict[str, float] = {}
        level, levels = 50.0, [50.0]
        for step in program:
            for allocation in step.allocates:
                sizes[allocation.key] = float(np.broadcast_to(allocation.bytes, 2)[behaviour])
                level += sizes[allocation.key]
                levels.append(level)
            for key in step.releases:
                level -= sizes[key]
                levels.append(level)
        ledger = account(program, [Allocation("p", "parameters", 50.0)], 2)["hbm"]
        assert min(levels) >= 0
        assert ledger.peak_bytes[behaviour] == max(levels)
        assert sum(ledger.breakdown(behaviour).values()) == max(levels)
        assert ledger.left_bytes[behaviour] == 0


def test_what_is_put_off_is_taken_with_a_later_task() -> None:
    program = [task(Allocation("x", "a", 10.0), frees=("x",)), task(Allocation("y", "a", 4.0), frees=("y",))]
    resident = [Allocation("p", "parameters", 100.0), Allocation("m", "optimizer", 50.0)]
    ledger = account(program, resident, 1)["hbm"]
    # 100, 150, 160, 150, 154, 150; with the optimizer's 50 behind y: 100, 110, 100, 104, 154, 150.
    first = ledger.put_off(slice(1, 2), 5, 1)
    assert (ledger.peak_bytes.tolist(), ledger.peak_task(0)) == ([160.0], 0)
    assert (first.peak_bytes.tolist(), first.peak_task(0)) == ([154.0], 1)
    assert first.left_bytes.tolist() == [50.0]
