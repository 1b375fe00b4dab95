"""Interleaved 1F1B whose forward and backward passes run together in pairs, as Megatron-LM combines them.

One more forward pass comes first, so that the two of a pair are of different micro-batches
(`overlap_moe_expert_parallel_comm`, `combined_1f1b.py`). One stage of one chunk has pairs as well.
"""

from __future__ import annotations

from simulator.program.schedules import Pass
from simulator.program.schedules.interleaved import in_turn, warm_up

NAME = "combined"


def order(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Pass]:
    """Passes of *stage*: each forward pass behind those that fill the pipeline runs together with a backward pass."""
    passes = in_turn(stage, stages, micro_batches, chunks, sooner=1)
    alone = warm_up(stage, stages, chunks) + 1
    return [
        one._replace(paired=one.direction == "forward" and position >= alone) for position, one in enumerate(passes)
    ]
