"""The memory ledger: what each behaviour holds in each tier, task by task.

Memory is counted as caching allocators count it: in the order in which the host issues work, not in the order in which
streams get to it. A task's allocations are made when it is issued; what it releases is gone before the next task is
issued. So the peak does not depend on timing, and a program that fits once fits always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.engine.task import Allocation, Quantity, Task

Amounts = npt.NDArray[np.float64]
Entry = tuple[int, str, Quantity]
"""Position of the task, kind, change in bytes: a number where it is the same for all behaviours."""


@dataclass(frozen=True, slots=True)
class TierLedger:
    """One tier's account.

    *entries* are in order; resident memory is entered at position -1.
    """

    tier: str
    entries: tuple[Entry, ...]
    peak_bytes: Amounts
    """Peak of each behaviour."""
    peak_entry: npt.NDArray[np.int64]
    """The entry at which each behaviour reached its peak."""
    left_bytes: Amounts
    """What is still held beside resident memory when the program is over; zero for a program that cleans up."""

    def breakdown(self, behaviour: int) -> dict[str, float]:
        """Bytes by kind that *behaviour* held at its peak, largest first."""
        held: dict[str, float] = {}
        for _, kind, change in self.entries[: int(self.peak_entry[behaviour]) + 1]:
            held[kind] = held.get(kind, 0.0) + of_behaviour(change, behaviour)
        return dict(sorted(((k, v) for k, v in held.items() if v > 0.5), key=lambda item: -item[1]))

    def owners(self) -> list[str]:
        """The kind that takes most of what each behaviour held at its peak beside resident memory, else of that."""
        at_entry: dict[int, list[int]] = {}
        for behaviour, number in enumerate(self.peak_entry.tolist()):
            at_entry.setdefault(number, []).append(behaviour)
        found = [""] * len(self.peak_entry)
        resident: dict[str, Quantity] = {}
        added: dict[str, Quantity] = {}
        for number, (position, kind, change) in enumerate(self.entries[: max(at_entry, default=0) + 1]):
            held = resident if position < 0 else added
            held[kind] = held.get(kind, 0.0) + change
            for behaviour in at_entry.get(number, ()):
                found[behaviour] = _largest(added, behaviour) or _largest(resident, behaviour)
        return found

    def resident_bytes(self, behaviour: int) -> float:
        """What *behaviour* holds before the program and after it."""
        return sum(of_behaviour(change, behaviour) for position, _, change in self.entries if position < 0)

    def peak_task(self, behaviour: int) -> int:
        """Position of the task at which *behaviour* reached its peak; -1 when it is resident memory alone."""
        return self.entries[int(self.peak_entry[behaviour])][0]

    def put_off(self, entries: slice, until: int, position: int) -> TierLedger:
        """The account if what those *entries* take came behind all entries before number *until*, with the task at
        *position*.
        """
        rows = self.entries
        late = [(position, kind, change) for _, kind, change in rows[entries]]
        moved = [*rows[: entries.start], *rows[entries.stop : until], *late, *rows[until:]]
        return _close(self.tier, moved, len(self.peak_bytes))


class UnbalancedProgramError(Exception):
    """A program takes a key twice, or releases one that it does not hold."""


def account(program: Sequence[Task], resident: Sequence[Allocation], behaviours: int) -> dict[str, TierLedger]:
    """Go through *program* and account for every tier. *resident* memory is there before and after.

    Raise :exc:`UnbalancedProgramError` where a key is taken twice or released without being held.
    """
    held: dict[str, Allocation] = {}
    entries: dict[str, list[Entry]] = {}
    for allocation in resident:
        entries.setdefault(allocation.tier, []).append((-1, allocation.kind, allocation.bytes))
    for position, task in enumerate(program):
        for allocation in task.allocates:
            if allocation.key in held:
                raise UnbalancedProgramError(f"task {position} ({task.name}) takes {allocation.key!r}, held already")
            held[allocation.key] = allocation
            entries.setdefault(allocation.tier, []).append((position, allocation.kind, allocation.bytes))
        for key in task.releases:
            if key not in held:
                raise UnbalancedProgramError(f"task {position} ({task.name}) releases {key!r}, which is not held")
            allocation = held.pop(key)
            entries.setdefault(allocation.tier, []).append((position, allocation.kind, -allocation.bytes))
    return {tier: _close(tier, rows, behaviours) for tier, rows in entries.items()}


def of_behaviour(amount: Quantity, behaviour: int) -> float:
    """What *amount* is for one behaviour."""
    return float(amount[behaviour]) if isinstance(amount, np.ndarray) else float(amount)


def _close(tier: str, rows: list[Entry], behaviours: int) -> TierLedger:
    """Add the entries up and note where each behaviour's peak was first reached.

    What is held is a sum common to all behaviours and one of each behaviour's own, which changes at few entries. So the
    highest common sum between two such entries is found first, then the highest of the stretches.
    """
    apart = [number for number, row in enumerate(rows) if isinstance(row[2], np.ndarray)]
    common = np.cumsum([0.0 if isinstance(change, np.ndarray) else change for _, _, change in rows])
    own = np.cumsum(np.stack([np.zeros(behaviours), *(rows[number][2] for number in apart)]), axis=0)
    starts = apart if apart[:1] == [0] else [0, *apart]
    own = own[-len(starts) :]
    stretch = np.argmax(np.maximum.reduceat(common, starts)[:, None] + own, axis=0)
    ends = [*starts[1:], len(rows)]
    at = np.array([starts[i] + int(np.argmax(common[starts[i] : ends[i]])) for i in stretch.tolist()], np.int64)
    resident = sum(1 for position, _, _ in rows if position < 0)
    before = sum((change for _, _, change in rows[:resident]), np.zeros(behaviours))
    return TierLedger(
        tier, tuple(rows), own[stretch, np.arange(behaviours)] + common[at], at, own[-1] + common[-1] - before
    )


def _largest(held: Mapping[str, Quantity], behaviour: int) -> str:
    """The kind of which *behaviour* holds most; none where it holds nothing."""
    amounts = {kind: of_behaviour(amount, behaviour) for kind, amount in held.items()}
    kind = max(amounts, key=lambda name: amounts[name], default="")
    return kind if amounts.get(kind, 0.0) > 0.5 else ""
