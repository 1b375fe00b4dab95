"""The peak of device memory of every rank: how high, when, and what most of it is.

A first step has no optimizer states until its update makes them; its peak is told apart from that of later steps. So is
the peak of what happens once: the model being made, and a second step that makes anew what it still holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simulator.engine.ledger import TierLedger, account
from simulator.engine.task import Allocation, Task
from simulator.parallel.folding import Folding
from simulator.program.rebuilt import moment, second_step
from simulator.program.stage import StageProgram


@dataclass(frozen=True, slots=True)
class RankPeak:
    """The peak of ranks that do exactly the same."""

    rank: int
    """The first of them."""
    ranks: int
    """How many there are."""
    stage: int
    peak_bytes: float
    first_step_peak_bytes: float
    phase: str
    """Of the task that takes the last of it; "resident" where the step adds nothing."""
    layer: int | None
    micro_batch: int | None
    task: str
    owner: str
    """The kind that takes most of what the step adds to resident memory."""

    def row(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def first_step(program: StageProgram, later: TierLedger) -> TierLedger:
    """The account of a first step: what its update adds for good, which *later* ones have from the start, is taken
    there.
    """
    resident, born, taken = (
        sum(1 for one in some if one.tier == later.tier)
        for some in (program.resident, program.born, program.tasks[program.birth].allocates)
    )
    until = bisect_left(later.entries, program.birth, key=lambda entry: entry[0]) + taken
    return later.put_off(slice(resident, resident + born), until, program.birth)


def settling_peak_bytes(program: StageProgram, context: Allocation, behaviours: int) -> float:
    """The highest peak of setting up and, where something old outlasts what it makes anew, of the second step."""
    ledgers = [account(program.set_up, [context], behaviours)["hbm"]]
    rebuilt = program.rebuilt
    if rebuilt is not None and rebuilt.until is not None:
        others = [item for item in program.resident if item is not rebuilt.new]
        tasks = [moment("first bucket", [rebuilt.old]), *second_step(program.tasks, rebuilt)]
        ledgers.append(account(tasks, [*others, *program.born, context], behaviours)["hbm"])
    return max(float(ledger.peak_bytes.max()) for ledger in ledgers)


def rank_peaks(
    program: StageProgram, folding: Folding, later: TierLedger, first: TierLedger, stage: int
) -> list[RankPeak]:
    """The peaks of the ranks of *stage*, from the ledgers of *later* steps and of the *first*; highest first."""
    owners = later.owners()
    found = [
        RankPeak(
            rank=program.first_rank + int(folding.representative[behaviour]),
            ranks=int(folding.ranks[behaviour]),
            stage=stage,
            peak_bytes=float(later.peak_bytes[behaviour]),
            first_step_peak_bytes=float(first.peak_bytes[behaviour]),
            owner=owners[behaviour],
            **_moment(program.tasks, later.peak_task(behaviour)),
        )
        for behaviour in range(folding.behaviours)
    ]
    return sorted(found, key=lambda peak: (-peak.peak_bytes, peak.rank))


def _moment(tasks: Sequence[Task], position: int) -> dict[str, Any]:
    """Where in the step a task is."""
    if position < 0:
        return {"phase": "resident", "layer": None, "micro_batch": None, "task": ""}
    task = tasks[position]
    layer, micro_batch = (value if value >= 0 else None for value in (task.layer, task.micro_batch))
    return {"phase": task.phase, "layer": layer, "micro_batch": micro_batch, "task": task.name}
