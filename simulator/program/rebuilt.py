"""What the second step makes anew: DDP's buckets.

DDP does not know yet in which order gradients come: it starts with one bucket for all of them, and makes its buckets
when the second step begins (`Reducer::rebuild_buckets`). The first bucket is gone before they are there, but not where
gradients are views of it: then it was there until the second backward pass had handed on its first gradient (own runs,
torch 2.11, `tests/allocations`), though nothing in it is used any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.engine.task import Allocation, Task
from simulator.program.emitter import COMPUTE


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What the second step makes anew."""

    old: Allocation
    new: Allocation
    until: Task | None
    """The task of the second step that is the last to find the old there; None where it is gone before all of them."""


def second_step(tasks: Iterable[Task], rebuilt: Rebuilt) -> list[Task]:
    """*tasks* of a step, in which the new takes the place of the old."""
    freed, made = moment("free", releases=[rebuilt.old.key]), moment("make anew", [rebuilt.new])
    if rebuilt.until is None:
        return [freed, made, *tasks]
    written = [made]
    for task in tasks:
        written += [task, freed] if task is rebuilt.until else [task]
    return written


def moment(name: str, allocates: Iterable[Allocation] = (), releases: Iterable[str] = ()) -> Task:
    """A task that takes and gives back memory and no time."""
    return Task(name, COMPUTE, "set up", 0, allocates=tuple(allocates), releases=tuple(releases))
