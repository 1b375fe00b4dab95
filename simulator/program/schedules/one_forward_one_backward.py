"""1F1B (PipeDream-Flush, Narayanan et al., 2021): fill the pipeline, then one forward and one backward pass in turn.

A stage holds the activations of at most as many micro-batches as there are stages from it to the end.
"""

from __future__ import annotations

from simulator.program.schedules import Pass

NAME = "1f1b"


def order(stage: int, stages: int, micro_batches: int, _chunks: int = 1) -> list[Pass]:
    """Passes of *stage*: warm-up forwards, pairs, and the backwards that are left."""
    forward = [Pass("forward", m) for m in range(micro_batches)]
    return one_and_one(forward, [Pass("backward", m) for m in range(micro_batches)], stages - stage - 1)


def one_and_one(forward: list[Pass], backward: list[Pass], ahead: int) -> list[Pass]:
    """*ahead* forward passes, then a forward and a backward one in turn, then the backward ones that are left."""
    ahead = min(ahead, len(forward))
    pairs = zip(forward[ahead:], backward, strict=False)
    return [*forward[:ahead], *(one for pair in pairs for one in pair), *backward[len(forward) - ahead :]]
