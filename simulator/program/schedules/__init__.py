"""Pipeline schedules: in which order a stage runs the passes of its micro-batches. One file each, found by its NAME."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from itertools import accumulate
from typing import Literal

Pass = tuple[Literal["forward", "backward"], int]
"""A pass and the micro-batch it belongs to."""
Schedule = Callable[[int, int, int], list[Pass]]
"""(stage, stages, micro-batches) -> the passes of that stage in order."""


@cache
def schedules() -> dict[str, Schedule]:
    """All schedules by name."""
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {module.NAME: module.order for module in modules}


def in_flight(passes: list[Pass]) -> int:
    """The most micro-batches whose forward pass is done and whose backward pass is not."""
    alive = accumulate(1 if direction == "forward" else -1 for direction, _ in passes)
    return max(alive, default=0)


def enough(name: str, stages: int, micro_batches: int) -> int:
    """Micro-batches, at most *micro_batches*, with which every stage holds as many at once as with all of them.

    A schedule that holds no more of twice as many is taken to hold no more of any number.
    """
    order = schedules()[name]

    def held(count: int) -> list[int]:
        return [in_flight(order(stage, stages, count)) for stage in range(stages)]

    count = stages
    while count < micro_batches and held(count) != held(2 * count):
        count *= 2
    return min(count, micro_batches)
