"""Random programs for property tests of the engine, and the times they take where links are shared by nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from simulator.engine.recording import Recording
from simulator.engine.task import Collective, Task, Vector
from simulator.parallel.folding import Folding

STREAMS = ("compute", "gather", "exchange")
AXES = ("one", "two")


@dataclass(frozen=True)
class Drawn:
    """A task before it is known on which behaviours it runs: *weight* is what a rank's feature adds to its time."""

    stream: str
    base_ns: int
    weight_ns: int
    host_ns: int
    deps: tuple[int, ...]
    blocks_host: bool
    axis: str | None
    usage: Mapping[str, float]


@st.composite
def drawn_programs(draw: st.DrawFn, *, shared_links: bool = True) -> list[Drawn]:
    count = draw(st.integers(1, 12))
    usages = st.dictionaries(st.sampled_from(["nvlink", "nic"]), st.floats(0.1, 1.0), max_size=2)
    tasks = []
    for number in range(count):
        stream = draw(st.sampled_from(STREAMS))
        tasks.append(
            Drawn(
                stream=stream,
                base_ns=draw(st.integers(0, 200)),
                weight_ns=draw(st.integers(0, 60)),
                host_ns=draw(st.integers(0, 30)),
                deps=tuple(draw(st.lists(st.integers(0, number - 1), unique=True, max_size=3))) if number else (),
                blocks_host=draw(st.integers(0, 5)) == 0,
                axis=draw(st.sampled_from(AXES)) if stream != "compute" else None,
                usage=draw(usages) if shared_links else {},
            )
        )
    return tasks


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Vector, dict[str, Vector]]:
    """Features of up to 12 ranks (equal for many), and their groups along two axes."""
    ranks = draw(st.integers(1, 12))
    features = draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks))
    groups = {axis: _groups(draw, ranks) for axis in AXES}
    return np.array(features), groups


def _groups(draw: st.DrawFn, ranks: int) -> Vector:
    """Either of a regular mesh, so that ranks fold, or at random."""
    if draw(st.booleans()):
        size = draw(st.sampled_from([d for d in range(1, ranks + 1) if ranks % d == 0]))
        rank = np.arange(ranks)
        return rank // size if draw(st.booleans()) else rank % size
    return np.unique(draw(st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks)), return_inverse=True)[1]


def tasks_on(drawn: list[Drawn], features: Vector, folding: Folding) -> list[Task]:
    """*drawn* as the program of the behaviours of *folding*; a collective takes as long as its slowest member."""
    own = features[folding.representative]
    program = []
    for task in drawn:
        duration: Vector = task.base_ns + task.weight_ns * own
        collective = None
        if task.axis is not None:
            groups = folding.groups[task.axis]
            slowest = np.zeros(int(groups.max()) + 1, np.int64)
            np.maximum.at(slowest, groups, duration)
            duration = slowest[groups]
            collective = Collective(
                "all", groups, {link: use * int(duration.max()) for link, use in task.usage.items()}
            )
        program.append(
            Task("t", task.stream, "k", duration, task.deps, task.host_ns, collective, blocks_host=task.blocks_host)
        )
    return program


def alone(program: list[Task], behaviours: int) -> Recording:
    """The longest path to each task: what a program takes where no transfer slows another."""
    issue, start, begin, end = (np.zeros((len(program), behaviours), np.int64) for _ in range(4))
    host = np.zeros(behaviours, np.int64)
    free = {task.stream: np.zeros(behaviours, np.int64) for task in program}
    for i, task in enumerate(program):
        issue[i] = host = host + task.host_ns
        start[i] = np.max([issue[i], free[task.stream], *(end[dep] for dep in task.deps)], axis=0)
        begin[i] = start[i]
        if task.collective is not None:
            groups = task.collective.groups
            begin[i] = [start[i][groups == group].max() for group in groups]
        end[i] = free[task.stream] = begin[i] + task.duration_ns
        if task.blocks_host:
            host = np.maximum(host, end[i])
    return Recording.of(issue, start, begin, end)
