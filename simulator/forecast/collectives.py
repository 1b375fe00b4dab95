"""Which algorithms the library takes for the collectives of a step, axis by axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simulator.engine.task import Task


def taken(tasks: Iterable[Task]) -> list[dict[str, Any]]:
    """Of each axis and operation that the library has a choice for: the algorithms of all sizes and groups, by name.

    "timed" is whatever the library chose inside a node: the price is that of its timings.
    """
    found: dict[tuple[str, str], tuple[set[str], int]] = {}
    for task in tasks:
        if task.collective is not None and task.algorithms:
            names, count = found.get((task.collective.communicator, task.kind), (set(), 0))
            found[task.collective.communicator, task.kind] = names | set(task.algorithms), count + 1
    return [
        {"axis": axis, "operation": kind, "algorithms": sorted(names), "tasks": count}
        for (axis, kind), (names, count) in sorted(found.items())
    ]
