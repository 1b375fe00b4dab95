"""Interleaved 1F1B (Narayanan et al., 2021), as Megatron-LM runs it: 1F1B over the chunks of each stage.

As many micro-batches as there are stages go through a stage's first chunk, then through its second, and so on; backward
passes take the chunks from the last. The pipeline fills chunk by chunk, so that the bubble is that of 1F1B over the
number of chunks; more activations wait for that (Megatron-LM `get_pp_rank_microbatches`, `get_schedule_table`).
"""

from __future__ import annotations

from simulator.program.schedules import Pass
from simulator.program.schedules.one_forward_one_backward import one_and_one

NAME = "interleaved"


def order(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Pass]:
    """Passes of *stage*: a forward pass and a backward pass in turn, twice as far apart as in 1F1B."""
    return in_turn(stage, stages, micro_batches, chunks)


def in_turn(stage: int, stages: int, micro_batches: int, chunks: int, *, sooner: int = 0) -> list[Pass]:
    """The same, with so many forward passes more before the first backward one."""
    turns = [
        (m, chunk)
        for first in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for m in range(first, min(first + stages, micro_batches))
    ]
    forward = [Pass("forward", m, chunk) for m, chunk in turns]
    backward = [Pass("backward", m, chunks - 1 - chunk) for m, chunk in turns]
    return one_and_one(forward, backward, warm_up(stage, stages, chunks) + sooner)


def warm_up(stage: int, stages: int, chunks: int) -> int:
    """Forward passes of *stage* before forward and backward passes come in turn."""
    return 2 * (stages - stage - 1) + (chunks - 1) * stages
