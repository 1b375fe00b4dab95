"""Weaving: the tasks of a forward and a backward pass in turn, so that the exchanges of each run beside the other.

Each pass is cut where its compute waits for an exchange of rows among experts; stretches of both are issued in turn,
the backward pass first. Where each layer has experts that is

    exchanges: combine back | dispatch, dispatch back | combine
    compute:   attention    | experts back, experts   | attention back

which is the order of Megatron-LM (`TransformerLayerSchedulePlan.run`) and of DualPipe (DeepSeek-V3, figure 4). Layers
without experts are part of the stretch before or behind them, where Megatron-LM pairs them with a layer each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest

from simulator.engine.task import Task

EXCHANGES = "all_to_all"


def woven(tasks: Sequence[Task], first: int, second: int) -> list[int]:
    """Positions of the *tasks* of the pass from *first* on and of that from *second* on in turn, the latter's first."""
    one, other = _stretches(tasks, first, second), _stretches(tasks, second, len(tasks))
    turns = zip_longest(other, one, fillvalue=range(0))
    return [position for turn in turns for stretch in turn for position in stretch]


def _stretches(tasks: Sequence[Task], first: int, until: int) -> list[range]:
    """The pass between two positions, cut before each task of the compute stream that waits for an exchange."""
    cuts = [
        position
        for position in range(first, until)
        if tasks[position].stream == "compute"
        and any(dep >= first and tasks[dep].stream == EXCHANGES for dep in tasks[position].deps)
    ]
    edges = [first, *cuts, until]
    return [range(start, end) for start, end in pairwise(edges)]
