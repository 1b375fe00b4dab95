"""What transfers take from compute: collectives run on the same compute units, so kernels beside them slow down.

Copies between card and host are made by engines of their own: matmuls beside pinned ones took 0.6 to 3 % longer on an
H200 (kernels/README.md), which is left out.

While a transfer is under way, compute goes on at a share of its speed. Where it overlaps is known only after a run, so
a program is run, its compute tasks are stretched by the time that they spent beside transfers, and it is run again. The
overlap is taken from the first run: it is exact where the order of things does not change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.engine.simulation import Recording
from simulator.engine.task import Task, Vector


def lost_ns(program: Sequence[Task], recording: Recording, taken: float) -> Vector | None:
    """How much longer each task takes, a row a task and a column a behaviour, when transfers take the share *taken*.

    A task that spends x ns beside transfers loses taken * x of its work there, and makes up for it at full speed where
    no transfer is beside it, or longer beside it: x * taken / (1 - taken) in all. None where nothing is lost.
    """
    works = np.array([task.collective is None for task in program], bool)
    moves = np.array([task.collective is not None and task.collective.takes_compute for task in program], bool)
    if taken <= 0 or not moves.any() or not works.any():
        return None
    result = np.zeros_like(recording.end_ns)
    for behaviour in range(result.shape[1]):
        begin, end = recording.begin_ns[:, behaviour], recording.end_ns[:, behaviour]
        beside = _beside(begin[moves], end[moves], begin[works], end[works])
        result[works, behaviour] = np.rint(beside * (taken / (1 - taken))).astype(np.int64)
    return result


def _beside(begin: Vector, end: Vector, work_begin: Vector, work_end: Vector) -> Vector:
    """For each stretch of work, how long some transfer, from *begin* to *end*, was under way in it."""
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    # Stretches in which transfers follow each other without a gap, and the time spent in them up to each border.
    fresh = np.concatenate([[True], begin[1:] > end[:-1]])
    first, last = begin[fresh], end[np.concatenate([fresh[1:], [True]])]
    borders = np.stack([first, last], axis=1).ravel()
    spent = np.cumsum(np.stack([np.zeros_like(first), last - first], axis=1).ravel())
    result: Vector = np.rint(np.interp(work_end, borders, spent) - np.interp(work_begin, borders, spent)).astype(
        np.int64
    )
    return result
