"""Optimizers: which moments they keep and what one update runs. One file each, found by its NAME."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from simulator.program.optimizer import Optimizer
from simulator.program.update import Update

_LARGE = 1 << 30
"""Elements of a tensor so large that what comes per tensor or block does not show."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One optimizer."""

    moments: Callable[[float, bool, Optimizer], tuple[float, ...]]
    """(elements, whether they are part of a hidden matrix, formats) -> bytes of each moment of one tensor."""
    write: Callable[[Update], None]
    """Writes the tasks of an update."""


@cache
def rules() -> dict[str, Rule]:
    """All optimizers by name."""
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {module.NAME: Rule(module.moments, module.write) for module in modules}


def moment_bytes(optimizer: Optimizer, *, matrix: bool) -> float:
    """Bytes of all moments of one element, in a large tensor."""
    return sum(rules()[optimizer.name].moments(float(_LARGE), matrix, optimizer)) / _LARGE


def least_moment_bytes(optimizer: Optimizer) -> float:
    """Bytes of moments that no element takes less than."""
    return min(moment_bytes(optimizer, matrix=matrix) for matrix in (False, True))
