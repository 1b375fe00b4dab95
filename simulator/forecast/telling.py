"""The telling ranks: few enough to look at, chosen so that they show what the job does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.engine.recording import Recording
from simulator.engine.task import Task
from simulator.forecast.simulate import SimulatedStep
from simulator.forecast.timeline import ABSENT_NS, TellingRank, Timeline
from simulator.program.job import Job


@dataclass(frozen=True, slots=True)
class Telling:
    """A telling rank and where to find it."""

    stage: int
    behaviour: int
    rank: TellingRank


def telling_ranks(job: Job, step: SimulatedStep) -> list[Telling]:
    """The median, the hottest and the coldest rank by compute time; one rank where all are alike."""
    busy = np.stack([_busy_ns(step, stage) for stage in range(len(step.programs))])
    order = np.argsort(busy, axis=None, kind="stable")
    chosen = {"median": order[len(order) // 2], "hottest": order[-1], "coldest": order[0]}
    if busy.max() == busy.min():
        chosen = {"every rank alike": order[0]}
    found = []
    for label, flat in chosen.items():
        stage, behaviour = divmod(int(flat), busy.shape[1])
        number = step.programs[stage].first_rank + int(job.folding.representative[behaviour])
        found.append(Telling(stage, behaviour, TellingRank(number, label)))
    return found


def timeline(step: SimulatedStep, telling: list[Telling]) -> Timeline:
    """What the telling ranks did; tasks of a stage that a rank is not in have no time in its column."""
    stages = sorted({one.stage for one in telling})
    tasks = [task for stage in stages for task in step.programs[stage].tasks]
    return Timeline(
        ranks=tuple(one.rank for one in telling),
        name=tuple(task.name for task in tasks),
        stream=tuple(task.stream for task in tasks),
        kind=tuple(task.kind for task in tasks),
        phase=tuple(task.phase for task in tasks),
        layer=np.array([task.layer for task in tasks]),
        micro_batch=np.array([task.micro_batch for task in tasks]),
        start_ns=_columns(step, telling, stages, "begin_ns"),
        end_ns=_columns(step, telling, stages, "end_ns"),
        wire_bytes=np.concatenate([_wire_bytes(step, telling, stage) for stage in stages]),
        waited_for=_waited_for(step, telling, stages),
    )


def _busy_ns(step: SimulatedStep, stage: int) -> np.ndarray:
    recording = step.recordings[stage]
    compute = [i for i, task in enumerate(step.programs[stage].tasks) if task.stream == "compute"]
    return np.asarray((recording.end_ns[compute] - recording.start_ns[compute]).sum(axis=0))


def _columns(step: SimulatedStep, telling: list[Telling], stages: list[int], name: str) -> np.ndarray:
    blocks = []
    for stage in stages:
        times = getattr(step.recordings[stage], name)
        columns = [times[:, one.behaviour] if one.stage == stage else np.full(len(times), ABSENT_NS) for one in telling]
        blocks.append(np.stack(columns, axis=1))
    return np.concatenate(blocks)


def _waited_for(step: SimulatedStep, telling: list[Telling], stages: list[int]) -> np.ndarray:
    blocks, offset = [], 0
    for stage in stages:
        program = step.programs[stage].tasks
        found = np.full((len(program), len(telling)), -1)
        for column, one in enumerate(telling):
            if one.stage == stage:
                for position, cause in _waits(program, step.recordings[stage], one.behaviour):
                    found[position, column] = offset + cause
        blocks.append(found)
        offset += len(program)
    return np.concatenate(blocks)


def _waits(program: Sequence[Task], recording: Recording, behaviour: int) -> Iterator[tuple[int, int]]:
    """Tasks of the compute stream that waited for another task, and for which one last."""
    times = (recording.issue_ns, recording.start_ns, recording.end_ns)
    issue, start, end = (values[:, behaviour].tolist() for values in times)
    before = 0
    for position, task in enumerate(program):
        if task.stream != "compute":
            continue
        cause = max(task.deps, key=lambda dep: end[dep], default=None)
        if cause is not None and start[position] > before and end[cause] > max(issue[position], before):
            yield position, cause
        before = end[position]


def _wire_bytes(step: SimulatedStep, telling: list[Telling], stage: int) -> np.ndarray:
    tasks, behaviours = step.programs[stage].tasks, step.recordings[stage].end_ns.shape[1]
    wire = np.zeros((len(tasks), len(telling)))
    mine = [one.stage == stage for one in telling]
    columns = [one.behaviour for one in telling]
    for position, task in enumerate(tasks):
        if task.collective is not None:
            sent = np.broadcast_to(task.collective.wire_bytes, (behaviours,))[columns]
            wire[position] = np.where(mine, sent, 0.0)
    return wire
