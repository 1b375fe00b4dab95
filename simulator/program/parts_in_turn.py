"""Rows to experts in parts: while one part is computed, the next travels to its experts and the last one home.

What is written for a part waits for its own exchange only. A stretch from one exchange to the other is written operator
by operator and then put in order, part by part. The stretch's memory is that of rows which are sent whole: it comes and
goes with the last part.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.engine.task import Allocation
from simulator.program.costs import Priced
from simulator.program.emitter import Emitter
from simulator.program.network import Transfer
from simulator.program.step import Step

STREAM = "all_to_all"


class PartsInTurn:
    """Writes the operators of one stretch after the other."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._arrivals: list[int] = []
        self._first = 0
        self._written: list[list[int]] = []

    @property
    def open(self) -> bool:
        """Whether rows have been sent in parts that have not come home."""
        return bool(self._written)

    def begin(self, step: Step, move: Transfer, deps: tuple[int, ...], takes: list[Allocation]) -> None:
        """Send every part of the rows by *move*, behind *deps*."""
        emitter = self._emitter
        self._arrivals = []
        for number in range(step.parts):
            held = takes if number == 0 else ()
            self._arrivals.append(emitter.transfer(step.name, STREAM, move.kind, move, deps=deps, allocates=held))
        self._first, self._written = emitter.last + 1, [[] for _ in range(step.parts)]

    def write(self, step: Step, priced: Priced, moves: Sequence[Transfer], takes: list[Allocation]) -> None:
        """Compute each part, or bring it home where there are *moves*; what it *takes* comes with the last one."""
        emitter, home = self._emitter, []
        for number in range(step.parts):
            held = takes if number == step.parts - 1 else ()
            if moves:
                deps = (self._written[number][-1],)
                home.append(emitter.transfer(step.name, STREAM, moves[0].kind, moves[0], deps=deps, allocates=held))
            else:
                if self._arrivals:
                    emitter.await_(self._arrivals[number])
                emitter.compute(step.name, step.kind, priced, allocates=held)
            if self.open:
                self._written[number].append(emitter.last)
        self._arrivals = home
        if home:
            self.end()

    def end(self) -> None:
        """Put what was written since rows were sent in order, part by part, behind what else was written meanwhile.

        What follows waits for the rows that are on their way.
        """
        if not self.open:
            return
        parts, self._written = self._written, []
        for position in self._arrivals:
            self._emitter.await_(position)
        self._arrivals = []
        own = {position for part in parts for position in part}
        others = [position for position in range(self._first, self._emitter.last + 1) if position not in own]
        self._emitter.reorder(self._first, [*others, *(position for part in parts for position in part)])
