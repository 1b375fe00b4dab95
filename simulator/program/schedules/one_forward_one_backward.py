"""1F1B (PipeDream-Flush, Narayanan et al., 2021): fill the pipeline, then one forward and one backward pass in turn.

A stage holds the activations of at most as many micro-batches as there are stages from it to the end.
"""

from __future__ import annotations

from simulator.program.schedules import Pass

NAME = "1f1b"


def order(stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """Passes of *stage*: warm-up forwards, pairs, and the backwards that are left."""
    ahead = min(stages - stage - 1, micro_batches)
    passes: list[Pass] = [("forward", m) for m in range(ahead)]
    for m in range(ahead, micro_batches):
        passes += [("forward", m), ("backward", m - ahead)]
    passes += [("backward", m) for m in range(micro_batches - ahead, micro_batches)]
    return passes
