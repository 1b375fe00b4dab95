"""GPipe (Huang et al., 2019): all forward passes, then all backward passes, last micro-batch first.

Every micro-batch's activations are alive at once.
"""

from __future__ import annotations

from simulator.program.schedules import Pass

NAME = "gpipe"


def order(_stage: int, _stages: int, micro_batches: int, _chunks: int = 1) -> list[Pass]:
    """Passes of any stage."""
    forward = [Pass("forward", m) for m in range(micro_batches)]
    backward = [Pass("backward", m) for m in reversed(range(micro_batches))]
    return forward + backward
