"""What transfers take from compute: collectives run on the same compute units, so kernels beside them slow down.

Copies between card and host are made by engines of their own: matmuls beside pinned ones took 0.6 to 3 % longer on an
H200 (kernels/README.md), which is left out.

While a transfer is under way, compute goes on at a share of its speed. Where it overlaps is known only after a run, so
a program is run, its compute tasks are stretched by the time that they spent beside transfers, and it is run again. The
overlap is taken from the first run: it is exact where the order of things does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.engine.simulation import Recording
from simulator.engine.task import Task, Vector


def stretched(program: Sequence[Task], recording: Recording, taken: float) -> list[Task]:
    """*program* with its compute tasks as long as they are when transfers beside them take the share *taken*.

    A task that spends x ns beside transfers loses taken * x of its work there, and makes up for it at full speed where
    no transfer is beside it, or longer beside it: x * taken / (1 - taken) in all.
    """
    moving = [i for i, task in enumerate(program) if task.collective is not None and task.collective.takes_compute]
    working = [i for i, task in enumerate(program) if task.collective is None]
    if not moving or not working or taken <= 0:
        return list(program)
    beside = np.stack(
        [_beside(recording, moving, working, behaviour) for behaviour in range(recording.end_ns.shape[1])],
        axis=1,
    )
    extra = np.rint(beside * (taken / (1 - taken))).astype(np.int64)
    result = list(program)
    for row, position in enumerate(working):
        if extra[row].any():
            result[position] = replace(program[position], duration_ns=program[position].duration_ns + extra[row])
    return result


def _beside(recording: Recording, moving: list[int], working: list[int], behaviour: int) -> Vector:
    """For each working task of one behaviour, how long some transfer was under way while it ran."""
    begin, end = recording.begin_ns[moving, behaviour], recording.end_ns[moving, behaviour]
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    # Stretches in which transfers follow each other without a gap, and the time spent in them up to each border.
    fresh = np.concatenate([[True], begin[1:] > end[:-1]])
    first, last = begin[fresh], end[np.concatenate([fresh[1:], [True]])]
    borders = np.stack([first, last], axis=1).ravel()
    spent = np.cumsum(np.stack([np.zeros_like(first), last - first], axis=1).ravel())
    work_begin, work_end = recording.begin_ns[working, behaviour], recording.end_ns[working, behaviour]
    result: Vector = np.rint(np.interp(work_end, borders, spent) - np.interp(work_begin, borders, spent)).astype(
        np.int64
    )
    return result
