"""Two-batch overlap: an iteration in two halves, each computed while the other's rows travel.

Both halves go through a layer's parts in turn, as DeepSeek-V3's prefill and SGLang's `TboForwardBatchPreparer` have it:
attention of one, then of the other; experts of one, then of the other. Exchanges follow each other on a stream of
their own. Kernels beside an exchange that runs on compute units take longer, as in training (`engine/interference.py`).

Two streams of one class, on which nothing competes for links, need no simulation: tasks are gone through in order,
which gives the engine's times (tests/test_serving_overlap.py) in a hundredth of its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from simulator.engine.interference import lost_ns
from simulator.engine.recording import Recording
from simulator.engine.task import Collective, Task, Vector
from simulator.program.serving.iteration import Parts
from simulator.program.serving.timing import Step, in_order


def overlapped(first: Sequence[Step], second: Sequence[Step], launch_s: float) -> Parts:
    """Parts of two halves of an iteration, woven; what exchanges take beyond all computing is theirs."""
    program = woven(first, second, launch_s)
    recording = run(program)
    recording = run(program, lost_ns(program, recording))
    alone = in_order([step for step in (*first, *second) if step.part != "exchange_s"], 0.0)
    computed_s = sum(task.duration_ns for task in program if task.collective is None) / 1e9
    rest_s = recording.step_ns / 1e9 - float(computed_s)
    host_s = sum(task.host_ns for task in program) / 1e9
    waited_s = min(rest_s, max(0.0, host_s - float(computed_s)))
    return alone + Parts(exchange_s=rest_s - waited_s, launch_bound_s=waited_s)


def run(program: Sequence[Task], longer_ns: Vector | None = None) -> Recording:
    """When the tasks of *program*, each with *longer_ns* more than it says, run on their streams."""
    free: dict[str, int] = {}
    host, times = 0, np.zeros((4, len(program), 1), np.int64)
    for number, task in enumerate(program):
        host += task.host_ns
        taken_up = max(host, free.get(task.stream, 0))
        begin = max([taken_up, *(int(times[3, dep, 0]) for dep in task.deps)])
        end = begin + int(task.duration_ns) + (0 if longer_ns is None else int(longer_ns[number, 0]))
        times[:, number, 0] = host, taken_up, begin, end
        free[task.stream] = end
        host = end if task.blocks_host else host
    return Recording.of(*times)


def woven(first: Sequence[Step], second: Sequence[Step], launch_s: float) -> list[Task]:
    """The program: stretches of both halves in turn, each behind the exchange that its own half waits for."""
    tasks: list[Task] = []
    last: dict[int, tuple[int, ...]] = {0: (), 1: ()}
    halves = [list(_stretches(first)), list(_stretches(second))]
    for turn in range(max(map(len, halves))):
        for half, stretches in enumerate(halves):
            for step_or_group in stretches[turn : turn + 1]:
                _append(tasks, step_or_group, last, half, launch_s)
    return tasks


def _append(
    tasks: list[Task], stretch: Sequence[Step], last: dict[int, tuple[int, ...]], half: int, launch_s: float
) -> None:
    """A stretch of kernels as one task, each exchange behind it as another."""
    for moves, group in groupby(stretch, key=lambda step: step.part == "exchange_s"):
        for steps in [[step] for step in group] if moves else [list(group)]:
            tasks.append(_task(steps, last[half], launch_s, moves=moves))
            last[half] = (len(tasks) - 1,)


def _task(steps: Sequence[Step], deps: tuple[int, ...], launch_s: float, *, moves: bool) -> Task:
    one = Collective("ep", np.zeros(1, np.int64), {"ep": steps[0].seconds * 1e9}, compute_taken=steps[0].taken)
    return Task(
        "exchange" if moves else "compute",
        "exchange" if moves else "compute",
        "all_to_all" if moves else "kernel",
        round(sum(step.seconds for step in steps) * 1e9),
        deps,
        round(sum(step.launches for step in steps) * launch_s * 1e9),
        one if moves else None,
        blocks_host=any(step.waited_for for step in steps),
    )


def _stretches(steps: Sequence[Step]) -> list[list[Step]]:
    """*steps* cut behind each run of exchanges."""
    found: list[list[Step]] = [[]]
    for before, step in zip([None, *steps], steps, strict=False):
        if before is not None and before.part == "exchange_s" and step.part != "exchange_s":
            found.append([])
        found[-1].append(step)
    return found
