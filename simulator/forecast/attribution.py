"""Where the time of a step goes: every nanosecond of every rank's compute stream gets one name.

While the compute stream works, time is compute. While it waits, the cause is what it waited for last: the host (launch
bound), a transfer (exposed communication), other ranks that came late to a collective (imbalance), or another pipeline
stage (bubble). The parts of a rank add up to the step exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulator.engine.recording import Recording
from simulator.engine.task import Task

Vector = npt.NDArray[np.int64]

EXPOSED = {
    "ep": "exposed_all_to_all_s",
    "dp_shard": "exposed_fsdp_s",
    "efsdp": "exposed_fsdp_s",
    "dp_shard part": "exposed_fsdp_s",
    "efsdp part": "exposed_fsdp_s",
    "dp_replicate": "exposed_fsdp_s",
    "tp": "exposed_tp_s",
    "etp": "exposed_tp_s",
    "cp": "exposed_cp_s",
    "pp": "exposed_pp_s",
    "host copies": "exposed_swap_s",
    "cores": "exposed_host_s",
    "drives": "exposed_drives_s",
}
"""Part of the step that waiting for a collective's transfer counts towards, by communicator."""
PARTS = (
    "compute_s",
    "exposed_all_to_all_s",
    "exposed_fsdp_s",
    "exposed_swap_s",
    "exposed_host_s",
    "exposed_drives_s",
    "exposed_tp_s",
    "exposed_cp_s",
    "exposed_pp_s",
    "pipeline_bubble_s",
    "launch_bound_s",
    "imbalance_s",
)


LAUNCHES = ("launch", "measured")
"""Kind and grade of what the host takes."""
AT_ONCE = 1 << 20
"""Times that are looked at together: tables stay small whatever the job."""


@dataclass(slots=True)
class Attribution:
    """Nanoseconds, [slots, behaviours] each. A slot is a micro-batch; the last holds what belongs to none."""

    parts: dict[str, Vector]
    """By part of the step; for each behaviour they add up to the step."""
    priced: dict[tuple[str, str], Vector] = field(default_factory=dict)
    """Of compute, transfers and launches: by kind and grade of the price."""

    def add(self, part: str, priced: tuple[str, str] | None, slots: Vector, nanoseconds: Vector) -> None:
        """Count *nanoseconds*, a row for each of *slots*, towards *part* and what is *priced* so."""
        total = np.zeros_like(self.parts[part])
        borders = np.flatnonzero(np.diff(slots, prepend=-1))
        if len(borders):
            np.add.at(total, slots[borders], np.add.reduceat(nanoseconds, borders, axis=0))
        self.parts[part] += total
        if priced is not None:
            known = self.priced.setdefault(priced, np.zeros_like(total))
            known += total


def attribute(program: Sequence[Task], recording: Recording, micro_batches: int, step_ns: int) -> Attribution:
    """Name the time of every behaviour of one part in a step that takes *step_ns* in all.

    A part that ends before the others do has a bubble at its end.
    """
    behaviours = recording.end_ns.shape[1]
    result = Attribution({part: np.zeros((micro_batches + 1, behaviours), np.int64) for part in PARTS})
    causes = _Causes(program)
    positions = np.array([number for number, task in enumerate(program) if task.stream == "compute"], np.int64)
    slots = np.array([task.micro_batch if task.micro_batch >= 0 else micro_batches for task in program], np.int64)
    before = np.zeros(behaviours, np.int64)
    for some in np.array_split(positions, 1 + len(positions) * behaviours // AT_ONCE):
        start, end = recording.start_ns[some], recording.end_ns[some]
        freed = np.concatenate([before[None], end[:-1]])
        _name_work(result, program, some, slots[some], end - start)
        waits = (start > freed).any(axis=1)
        _name_gaps(result, causes, recording, some[waits], slots[some[waits]], freed[waits])
        before = end[-1] if len(end) else before
    own_end, last = recording.end_ns.max(axis=0, initial=0), recording.end_ns.argmax(axis=0)
    waited = _Waits(np.array([micro_batches]), before[None], own_end[None], np.where(own_end > before, last, -1)[None])
    _name_waits(result, causes, recording, waited)
    result.parts["imbalance_s"][micro_batches] += recording.step_ns - own_end
    result.parts["pipeline_bubble_s"][micro_batches] += step_ns - recording.step_ns
    return result


@dataclass(frozen=True, slots=True)
class _Waits:
    """Waits of the compute stream, a row each: the slot, and for each behaviour since when, until when, and for the
    task at which position, or for the host where that is -1.
    """

    slots: Vector
    before: Vector
    until: Vector
    cause: Vector


class _Causes:
    """What tasks of *program* count as where they are waited for."""

    def __init__(self, program: Sequence[Task]) -> None:
        self.deps = [task.deps for task in program]
        self.host_waits = [task.blocks_host and task.collective is not None for task in program]
        kinds: dict[tuple[str, str, str], int] = {}
        self.kind = np.full(len(program), -1)
        for number, task in enumerate(program):
            if task.collective is not None:
                named = task.collective.communicator, task.kind, task.grade
                self.kind[number] = kinds.setdefault(named, len(kinds))
        self.kinds = tuple(kinds)
        """(communicator, kind, grade) of each number of a kind."""


def _name_work(result: Attribution, program: Sequence[Task], positions: Vector, slots: Vector, busy: Vector) -> None:
    """Name the time for which kernels at *positions* keep the stream *busy*."""
    rows: dict[tuple[str, str], list[int]] = {}
    for row, position in enumerate(positions.tolist()):
        rows.setdefault((program[position].kind, program[position].grade), []).append(row)
    for priced, mine in rows.items():
        result.add("compute_s", priced, slots[mine], busy[mine])


def _name_gaps(
    result: Attribution, causes: _Causes, recording: Recording, positions: Vector, slots: Vector, before: Vector
) -> None:
    """Name the waits of the compute stream before the tasks at *positions*, which began at *before*."""
    start, binding = recording.start_ns[positions], recording.issued_ns(positions)
    cause = np.full(before.shape, -1)
    for rows, deps in _in_turn([causes.deps[position] for position in positions.tolist()]):
        end = recording.end_ns[deps]
        later = end > binding[rows]
        binding[rows] = np.where(later, end, binding[rows])
        cause[rows] = np.where(later, deps[:, None], cause[rows])
    blocking = [tuple(d for d in causes.deps[position] if causes.host_waits[d]) for position in positions.tolist()]
    for rows, deps in _in_turn(blocking):
        # The host waited for it as well: what it issues next comes late because of that.
        until = np.clip(recording.end_ns[deps], before[rows], start[rows])
        alike = np.broadcast_to(deps[:, None], until.shape)
        _name_waits(result, causes, recording, _Waits(slots[rows], before[rows], until, alike))
        before[rows] = until
    _name_waits(result, causes, recording, _Waits(slots, before, start, cause))


def _in_turn(listed: Sequence[tuple[int, ...]]) -> Iterator[tuple[Vector, Vector]]:
    """The first entry of each row that has one, then the second, and so on: rows and entries."""
    for turn in range(max(map(len, listed), default=0)):
        rows = [row for row, entries in enumerate(listed) if len(entries) > turn]
        yield np.array(rows), np.array([listed[row][turn] for row in rows])


def _name_waits(result: Attribution, causes: _Causes, recording: Recording, waits: _Waits) -> None:
    """Name *waits*: members that came late, then bytes, or the host."""
    gap, column = waits.until - waits.before, np.arange(waits.until.shape[1])
    result.add("launch_bound_s", LAUNCHES, waits.slots, np.where(waits.cause < 0, gap, 0))
    if not causes.kinds:  # Nothing to wait for but the host.
        return
    came, began = recording.start_ns[waits.cause, column], recording.met_ns[recording.row[waits.cause], column]
    idle = np.clip(np.minimum(began, waits.until) - np.maximum(came, waits.before), 0, gap)
    kind = np.where(waits.cause < 0, -1, causes.kind[waits.cause])
    assert not ((kind < 0) & (waits.cause >= 0)).any()
    for number in np.flatnonzero(np.bincount(kind[kind >= 0])).tolist():
        mine, (communicator, operation, grade) = kind == number, causes.kinds[number]
        late = "pipeline_bubble_s" if communicator == "pp" else "imbalance_s"
        result.add(late, None, waits.slots, np.where(mine, idle, 0))
        result.add(EXPOSED[communicator], (operation, grade), waits.slots, np.where(mine, gap - idle, 0))
