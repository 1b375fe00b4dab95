"""What transfers take from compute: collectives run on the same compute units, so kernels beside them slow down.

While a transfer is under way, compute goes on on the units that it leaves. Several transfers lie on the units
independently of each other: together they leave the product of what each leaves. Where they overlap is known only after
a run, so a program is run, its compute tasks take as much longer as they lost beside transfers, and it is run again.
The overlap is taken from the first run: it is exact where the order of things does not change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simulator.engine.recording import Recording
from simulator.engine.task import Task, Vector

Shares = npt.NDArray[np.float64]


def lost_ns(program: Sequence[Task], recording: Recording) -> Vector | None:
    """How much longer each task takes, a row a task and a column a behaviour, for what transfers beside it occupy.

    A task that spends x ns where a share s of the compute units is left loses 1 - s of its work there, and makes up for
    it at full speed where no transfer is beside it, or longer beside it: x * (1 / s - 1) in all. None where nothing is
    lost.
    """
    result = np.zeros_like(recording.end_ns)
    works = np.flatnonzero([task.collective is None for task in program])
    moves = np.array([number for number, task in enumerate(program) if task.collective is not None], np.int64)
    taken = np.zeros((len(moves), result.shape[1]))
    for row, collective in zip(taken, filter(None, (task.collective for task in program)), strict=True):
        row[:] = collective.compute_taken
    moving = taken.any(axis=1)
    if not moving.any() or not len(works):
        return None
    moves = moves[moving]
    # A row for each behaviour, so that what is looked at together lies together.
    begin, end, work_begin, work_end = (
        times.T.copy()
        for times in (
            recording.met_ns[recording.row[moves]],
            recording.end_ns[moves],
            recording.start_ns[works],
            recording.end_ns[works],
        )
    )
    by_behaviour = zip(begin, end, 1.0 - taken[moving].T, work_begin, work_end, strict=True)
    result[works] = np.rint([_lost(*of_one) for of_one in by_behaviour]).T
    return result


def _lost(begin: Vector, end: Vector, left: Shares, work_begin: Vector, work_end: Vector) -> Shares:
    """For each stretch of work, how much longer it takes beside transfers from *begin* to *end*, which leave *left*."""
    borders = np.concatenate([begin, end])
    order = np.argsort(borders, kind="stable")
    borders, logs = borders[order], np.log(left)
    # Logarithms of what is left add up where transfers overlap; between two borders the slowdown is constant.
    level = np.cumsum(np.concatenate([logs, -logs])[order])[:-1]
    lost = np.concatenate([[0.0], np.cumsum(np.expm1(-level) * np.diff(borders))])
    return np.asarray(np.subtract(*np.interp([work_end, work_begin], borders, lost)))
