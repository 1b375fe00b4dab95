"""Rows in parts: while one part is computed, the next travels to where it is and the last one where it goes.

So rows go to experts and home, and so tensor-parallel ranks gather and scatter beside products. What is written for a
part waits for its own transfer only. A stretch from one transfer to the other is written operator by operator and then
put in order, part by part. The stretch's memory is that of rows which are sent whole: it comes and goes with the last
part.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.engine.task import Allocation
from simulator.program.costs import Priced
from simulator.program.emitter import Emitter
from simulator.program.network import Transfer
from simulator.program.step import Step

STREAMS = {"ep": "all_to_all", "etp": "tp"}
"""Stream of a communicator's transfers where it has not its own name."""


class PartsInTurn:
    """Writes the operators of one stretch after the other."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._arrivals: list[int] = []
        self._first = 0
        self._written: list[list[int]] = []

    @property
    def open(self) -> bool:
        """Whether a stretch is being written."""
        return bool(self._written)

    def start(self, parts: int) -> None:
        """Begin a stretch of *parts* that are where they are computed."""
        self._first, self._written = self._emitter.last + 1, [[] for _ in range(parts)]

    def begin(
        self,
        step: Step,
        parts: int,
        move: Transfer,
        deps: tuple[int, ...],
        takes: list[Allocation],
        *,
        own: bool = False,
    ) -> None:
        """Send every one of *parts* by *move*, behind *deps*; *own*: but the first, which is there then."""
        self._arrivals = [deps[-1]] if own else []
        for number in range(len(self._arrivals), parts):
            held = takes if number == int(own) else ()
            self._arrivals.append(self._move(step, move, deps, held))
        self.start(parts)

    def write(self, step: Step, parts: int, priced: Priced, takes: list[Allocation]) -> None:
        """Compute each of *parts*; what it *takes* comes with the last one."""
        for number in range(parts):
            if self._arrivals:
                self._emitter.await_(self._arrivals[number])
            held = takes if number == parts - 1 else ()
            self._emitter.compute(step.name, step.kind, priced, allocates=held)
            if self.open:
                self._written[number].append(self._emitter.last)
        self._arrivals = []

    def bring_home(self, step: Step, parts: int, move: Transfer, takes: list[Allocation], *, own: bool = False) -> None:
        """Send each of *parts* by *move* when it is computed, *own*: but the last, which stays. It ends the stretch."""
        last, home = parts - 1 - int(own), []
        for number in range(last + 1):
            behind = self._written[number][-1] if self._written[number] else self._emitter.last
            home.append(self._move(step, move, (behind,), takes if number == last else ()))
            self._written[number].append(self._emitter.last)
        self._arrivals = home
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

    def _move(self, step: Step, move: Transfer, deps: tuple[int, ...], takes: Sequence[Allocation]) -> int:
        stream = STREAMS.get(move.collective.communicator, move.collective.communicator)
        return self._emitter.transfer(step.name, stream, move.kind, move, deps=deps, allocates=takes)
