"""Pipeline schedules: in which order a stage runs the passes of its micro-batches. One file each, found by its NAME."""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import Literal, NamedTuple


class Pass(NamedTuple):
    """A pass of a micro-batch through one chunk of a stage.

    A backward pass makes all gradients, or it is two: first those of inputs, with what of weights is not a matmul, and
    later those of weights.
    """

    direction: Literal["forward", "backward", "inputs", "weights"]
    micro_batch: int
    chunk: int = 0
    paired: bool = False
    """Whether it runs together with the pass behind it, which is of another micro-batch."""


Schedule = Callable[[int, int, int, int], list[Pass]]
"""(stage, stages, micro-batches, chunks of a stage) -> the passes of that stage in order."""


@cache
def schedules() -> dict[str, Schedule]:
    """All schedules by name."""
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {module.NAME: module.order for module in modules}


def in_flight(passes: Iterable[Pass]) -> tuple[int, ...]:
    """Micro-batches of each chunk that are between forward and backward pass, when they are most in all."""
    alive: Counter[int] = Counter()
    total = most_in_all = 0
    most: tuple[int, ...] = ()
    for one in passes:
        change = {"forward": 1, "weights": 0}.get(one.direction, -1)
        alive[one.chunk] += change
        total += change
        if total > most_in_all:
            most, most_in_all = tuple(alive[number] for number in range(max(alive) + 1)), total
    return most


def enough(name: str, stages: int, micro_batches: int, chunks: int = 1) -> int:
    """Micro-batches, at most *micro_batches*, with which every stage holds as many at once as with all of them.

    A schedule that holds no more of twice as many is taken to hold no more of any number.
    """
    order = schedules()[name]

    def held(count: int) -> list[tuple[int, ...]]:
        return [in_flight(order(stage, stages, count, chunks)) for stage in range(stages)]

    count = stages
    while count < micro_batches and held(count) != held(2 * count):
        count *= 2
    return min(count, micro_batches)
