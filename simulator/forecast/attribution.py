"""Where the time of a step goes: every nanosecond of every rank's compute stream gets one name.

While the compute stream works, time is compute. While it waits, the cause is what it waited for last: the host (launch
bound), a transfer (exposed communication), other ranks that came late to a collective (imbalance), or another pipeline
stage (bubble). The parts of a rank add up to the step exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulator.engine.simulation import Recording
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


@dataclass(slots=True)
class Attribution:
    """Nanoseconds, [slots, behaviours] each. A slot is a micro-batch; the last holds what belongs to none."""

    parts: dict[str, Vector]
    """By part of the step; for each behaviour they add up to the step."""
    priced: dict[tuple[str, str], Vector] = field(default_factory=dict)
    """Of compute, transfers and launches: by kind and grade of the price."""

    def add(self, part: str, kind: str, grade: str, slot: int, nanoseconds: Vector) -> None:
        """Count *nanoseconds* of each behaviour towards *part*, priced as *kind* with *grade*."""
        self.parts[part][slot] += nanoseconds
        known = self.priced.setdefault((kind, grade), np.zeros_like(self.parts[part]))
        known[slot] += nanoseconds


def attribute(program: Sequence[Task], recording: Recording, micro_batches: int, step_ns: int) -> Attribution:
    """Name the time of every behaviour of one part in a step that takes *step_ns* in all.

    A part that ends before the others do has a bubble at its end.
    """
    shape = micro_batches + 1, recording.end_ns.shape[1]
    result = Attribution({part: np.zeros(shape, np.int64) for part in PARTS})
    before = np.zeros(shape[1], np.int64)
    for position, task in enumerate(program):
        if task.stream != "compute":
            continue
        slot = task.micro_batch if task.micro_batch >= 0 else micro_batches
        if (recording.start_ns[position] > before).any():
            _name_gap(result, program, recording, position, slot, before)
        busy = recording.end_ns[position] - recording.start_ns[position]
        result.add("compute_s", task.kind, task.grade, slot, busy)
        before = recording.end_ns[position]
    own_end, last = recording.end_ns.max(axis=0, initial=0), recording.end_ns.argmax(axis=0)
    _name_wait(result, program, recording, micro_batches, before, own_end, np.where(own_end > before, last, -1))
    result.parts["imbalance_s"][micro_batches] += recording.step_ns - own_end
    result.parts["pipeline_bubble_s"][micro_batches] += step_ns - recording.step_ns
    return result


def _name_gap(
    result: Attribution, program: Sequence[Task], recording: Recording, position: int, slot: int, before: Vector
) -> None:
    """Name the wait of the compute stream before the task at *position*, which began at *before*."""
    binding = recording.issue_ns[position].copy()
    cause = np.full(len(before), -1)
    for dep in program[position].deps:
        later = recording.end_ns[dep] > binding
        binding = np.where(later, recording.end_ns[dep], binding)
        cause = np.where(later, dep, cause)
    start = recording.start_ns[position]
    for dep in program[position].deps:
        if program[dep].blocks_host and program[dep].collective is not None:
            # The host waited for it as well: what it issues next comes late because of that.
            until = np.clip(recording.end_ns[dep], before, start)
            _name_wait(result, program, recording, slot, before, until, np.full(len(before), dep))
            before = until
    _name_wait(result, program, recording, slot, before, start, cause)


def _name_wait(
    result: Attribution,
    program: Sequence[Task],
    recording: Recording,
    slot: int,
    before: Vector,
    until: Vector,
    cause: Vector,
) -> None:
    """Name the time between *before* and *until*, waited for the task at *cause*, or for the host where it is -1."""
    gap = until - before
    result.add("launch_bound_s", "launch", "measured", slot, np.where(cause < 0, gap, 0))
    for dep in np.unique(cause[cause >= 0]).tolist():
        task, came, began = program[dep], recording.start_ns[dep], recording.begin_ns[dep]
        waited = np.clip(np.minimum(began, until) - np.maximum(came, before), 0, gap)
        assert task.collective is not None
        communicator = task.collective.communicator
        idle = "pipeline_bubble_s" if communicator == "pp" else "imbalance_s"
        result.parts[idle][slot] += np.where(cause == dep, waited, 0)
        result.add(EXPOSED[communicator], task.kind, task.grade, slot, np.where(cause == dep, gap - waited, 0))
