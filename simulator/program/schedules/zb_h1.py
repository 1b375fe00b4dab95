"""ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2023): 1F1B whose gradients of weights wait for the bubble.

Gradients of inputs go back stage by stage without those of weights in their way, which later stages put off for longer:
stage s by s micro-batches. So every stage holds about as much as the first one of 1F1B, and the bubble is
(p - 1) (F + B - W) of p stages, B without W, which takes no longer than F.
"""

from __future__ import annotations

from simulator.program.schedules import Pass
from simulator.program.schedules.one_forward_one_backward import one_and_one

NAME = "zb_h1"


def order(stage: int, stages: int, micro_batches: int, _chunks: int = 1) -> list[Pass]:
    """Passes of *stage*: 1F1B, and behind each gradient of inputs the weights' of one that is *stage* older."""
    forward = [Pass("forward", m) for m in range(micro_batches)]
    inputs = [Pass("inputs", m) for m in range(micro_batches)]
    passes: list[Pass] = []
    for one in one_and_one(forward, inputs, stages - stage - 1):
        passes.append(one)
        if one.direction == "inputs" and one.micro_batch >= stage:
            passes.append(Pass("weights", one.micro_batch - stage))
    left = range(max(0, micro_batches - stage), micro_batches)
    return [*passes, *(Pass("weights", m) for m in left)]
