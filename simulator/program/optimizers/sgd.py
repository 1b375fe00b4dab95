"""SGD without momentum: nothing is kept."""

from __future__ import annotations

from simulator.program.optimizer import Optimizer
from simulator.program.update import Update

NAME = "sgd"


def moments(_elements: float, _matrix: bool, _optimizer: Optimizer) -> tuple[float, ...]:
    """None."""
    return ()


def write(update: Update) -> None:
    """One multi-tensor pass over what the rank owns."""
    update.sweep("optimizer", update.owned, "optimizer", update.optimizer.sweep_bytes)
