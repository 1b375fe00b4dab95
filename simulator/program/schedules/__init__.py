"""Pipeline schedules: in which order a stage runs the passes of its micro-batches. One file each, found by its NAME."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
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
