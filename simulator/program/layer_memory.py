"""Memory of a layer's steps: what each takes and what nobody needs behind it, found once for all passes.

The key of a tensor is the tag of its pass and an ending, which says what it is and of which step. What runs again has
endings of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from simulator.engine.task import Allocation, Quantity
from simulator.model.recompute import Stretch
from simulator.program.keeping import Keeping
from simulator.program.step import Step

INPUT = ".input"
"""Ending of a layer's input, which is kept for running the layer again."""
AGAIN = " again"
"""Begins the endings of what runs again."""
_HAIR = 1e-6
"""Share of a tensor that rounding may add to a count of them."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """Allocations that are alike in all passes but for the tags of their keys."""

    ending: str
    kind: str
    bytes: Quantity
    pool: str
    pieces: tuple[Quantity, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there is anything to allocate."""
        return isinstance(self.bytes, np.ndarray) or self.bytes > 0

    def of(self, tag: str) -> Allocation:
        """Those of the pass of that *tag*."""
        return Allocation(tag + self.ending, self.kind, self.bytes, "hbm", self.pieces, self.pool)


@dataclass(frozen=True, slots=True)
class Turn:
    """A step's turn in a pass: what it takes, and the endings of what is freed behind it."""

    number: int
    takes: tuple[Tensors, ...]
    frees: tuple[str, ...] = ()
    runs: bool = True
    """Whether the step runs; else what it takes is there with the one before."""


@dataclass(frozen=True, slots=True)
class Run:
    """Turns one after the other, and what is freed behind the last."""

    turns: tuple[Turn, ...]
    frees: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Back:
    """A step's turn in the backward pass."""

    gradient: Tensors
    """Of its input."""
    gradient_put_off: Tensors
    """The same where gradients of weights may come later, which may need it."""
    scratch: tuple[Tensors, ...]
    used: tuple[str, ...]
    """Endings of what nobody needs behind it."""


def forward_run(steps: Sequence[Step], loose: frozenset[int], keeping: Keeping) -> Run:
    """A forward pass of *steps*; results of the *loose* ones are kept though none saves them."""
    turns, done = list[Turn](), tuple[str, ...]()
    for number, step in enumerate(steps):
        output = _output("", steps, number, keeping)
        if number in loose:
            output = Tensors(result(number), "saved activations", step.output_bytes, step.pool)
        turns.append(_turn("", step, number, [_own("", step, number, keeping), output], done))
        done = () if number in loose or keeping.hands_over(number) else (output.ending,)
    return Run(tuple(turns), done)


def rerun(steps: Sequence[Step], stretch: Stretch, idle: frozenset[int], *, restores: bool) -> Run:
    """*stretch* again, but for *idle* steps; *restores*: its result is copied to where its readers look for it.

    PyTorch's checkpoint stops early: once the last tensor that backward needs is there, which is when the last
    operator that saves any is about to run.
    """
    runs = frozenset(stretch.positions) - stretch.results - idle
    keeping = Keeping(steps, lambda step: step.restored, lambda n: n in runs and n + 1 in stretch.positions)
    stop = max((n for n, step in enumerate(steps) if step.saved.sizes or step.restored.sizes), default=0)
    turns, done = list[Turn](), tuple[str, ...]()
    for number in stretch.positions:
        step, own = steps[number], _own(AGAIN, steps[number], number, keeping)
        if stretch.stops_early and number == stop:
            # It would have saved its input, which is there.
            there = bool(number) and keeping.hands_over(number - 1)
            turns.append(Turn(number, () if there else _some([own]), runs=False))
            break
        if number not in runs:
            turns.append(Turn(number, _some([own]), runs=False))
            done += (result(number),) if number in stretch.loose else ()
            continue
        output = _output(AGAIN, steps, number, keeping)
        holds = stretch.holds_result and not restores and number == stretch.positions[-1]
        if holds:
            output = Tensors(held(stretch), step.output_kind, step.output_bytes, step.pool)
        turns.append(_turn(AGAIN, step, number, [own, output], done))
        done = () if holds or keeping.hands_over(number) else (output.ending,)
    return Run(tuple(turns), done)


def backward_turns(steps: Sequence[Step], stretches: Sequence[Stretch]) -> list[Back]:
    """The backward pass of each of *steps*, of which *stretches* run again."""
    return [_back(steps, number, stretches) for number in range(len(steps))]


def _back(steps: Sequence[Step], number: int, stretches: Sequence[Stretch]) -> Back:
    step, before = steps[number], steps[max(number - 1, 0)]
    gradient = Tensors(f".grad.{number}", step.output_kind, before.output_bytes, step.pool)
    passes = ("", AGAIN) if stretches else ("",)
    return Back(
        gradient=gradient,
        gradient_put_off=replace(gradient, kind="saved activations") if before.parted else gradient,
        scratch=_some([_scratch("", step, number, step.backward_workspace_bytes)]),
        used=(
            *(each + saved(number) for each in passes),
            *(each + out(number - 1) for each in passes),
            *(held(one) for one in stretches if one.positions[0] == number),
            *(restored(one) for one in stretches if one.restored_until == number),
        ),
    )


def _turn(begin: str, step: Step, number: int, takes: list[Tensors], done: tuple[str, ...]) -> Turn:
    """Of a step that runs: it *takes* temporaries too, and frees them with what was only there for it to read: *done*.

    *begin* is what its endings begin with.
    """
    scratch = _scratch(begin, step, number, step.workspace_bytes)
    return Turn(number, _some([*takes, scratch]), (scratch.ending, *done) if scratch.any else done)


def _some(tensors: Iterable[Tensors]) -> tuple[Tensors, ...]:
    return tuple(one for one in tensors if one.any)


def _own(begin: str, step: Step, number: int, keeping: Keeping) -> Tensors:
    """What a step keeps beside the result of the one before."""
    sizes = keeping.own(number)
    return Tensors(begin + saved(number), step.saved_kind, sum(sizes), step.pool, sizes if len(sizes) > 1 else ())


def _output(begin: str, steps: Sequence[Step], number: int, keeping: Keeping) -> Tensors:
    step = steps[number]
    kind = steps[number + 1].saved_kind if keeping.hands_over(number) else step.output_kind
    return Tensors(begin + out(number), kind, step.output_bytes, step.pool)


def _scratch(begin: str, step: Step, number: int, size: Quantity) -> Tensors:
    """Temporaries of *size* bytes at once: tensors as large as the largest that the operator saves or returns.

    One that is not whole stands for a tensor that makes room for the result before all are there: to the allocator
    it is whole.
    """
    largest = max((*step.saved.tensors, *step.restored.tensors, step.output_bytes), key=_most)
    count = ceil(_least(size / largest) - _HAIR) if _least(largest) else 1
    pieces = (largest,) * count if count > 1 else ()
    return Tensors(f"{begin}.scratch.{number}", "workspace", size, step.pool, pieces)


def _most(size: Quantity) -> float:
    return float(size.max()) if isinstance(size, np.ndarray) else size


def _least(size: Quantity) -> float:
    return float(size.min()) if isinstance(size, np.ndarray) else size


def saved(number: int) -> str:
    """Ending of what the operator at *number* keeps beside the result of the one before."""
    return f".saved.{number}"


def out(number: int) -> str:
    """Ending of the result of the operator at *number*."""
    return f".out.{number}"


def result(number: int) -> str:
    """Ending of a result that is kept for a stretch alone."""
    return f".result.{number}"


def held(stretch: Stretch) -> str:
    """Ending of the result that a stretch made again."""
    return f".held.{stretch.positions[0]}"


def restored(stretch: Stretch) -> str:
    """Ending of the discarded tensors that a stretch brings back."""
    return f".restored.{stretch.positions[0]}"
