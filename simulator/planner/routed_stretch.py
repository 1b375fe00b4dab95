"""The routed operators of some layers, added up in forward order; exchanges are counted in bytes of a row.

Between two exchanges every rank of the group waits for the slowest. Before the first and after the last, where ranks
go on from layer to layer without waiting, the mean rank is what all of them take at least. What runs again without an
exchange comes on top of some other work of the slowest rank, which may have least of it.
"""

from __future__ import annotations

import numpy as np

from simulator.engine.task import Quantity
from simulator.planner.between_exchanges import Piece, late_s, waits_s
from simulator.planner.passes import COMPUTE, HOST, PARTS, TENSOR, Amounts, Passes
from simulator.program.costs import Priced
from simulator.program.step import Step


class RoutedStretch:
    """Of *layers* layers on *ranks* ranks, where a launch takes the host *launch_s* seconds, and *looped_launch_s* in a
    library's loop over experts.
    """

    def __init__(self, layers: int, ranks: int, launch_s: float, looped_launch_s: float) -> None:
        self._shape = layers, ranks
        self._launch_s, self._looped_launch_s = launch_s, looped_launch_s
        self._row_bytes, self._told = np.zeros(3), np.zeros(3)
        self._saved, self._restored = np.zeros(self._shape), np.zeros(self._shape)
        self._work = [np.zeros((2, *self._shape))]
        self._again = [np.zeros(self._shape)]
        self._moved = np.zeros((3, len(PARTS), layers))
        self._pieces: list[list[tuple[Piece, Piece, bool]]] = [[]]
        self._sent = [0.0]
        self._told_behind: int | None = None

    def operator(self, step: Step, moves_s: float, moves_back_s: float, *, again: bool) -> None:
        """Add one operator, which keeps tensors as *step* says, and may run *again*."""
        for direction, priced in enumerate((step.forward, step.backward)):
            self._work[-1][direction] += self._seconds(priced)
        self._moved[0, TENSOR] += moves_s
        self._moved[1, TENSOR] += moves_back_s
        for passes, priced in enumerate((step.forward, step.backward, step.forward)[: 2 + again]):
            self._moved[passes, HOST] += self._issue_s(priced)
        if again:
            self._again[-1] += self._seconds(step.forward)
            self._moved[2, TENSOR] += moves_s
        ahead, back = (
            Piece(self._seconds(priced), self._issue_s(priced), moves)
            for priced, moves in ((step.forward, moves_s), (step.backward, moves_back_s))
        )
        self._pieces[-1].append((ahead, back, again))
        self._saved += sum(map(self._spread, step.saved.tensors), np.zeros(self._shape))
        self._restored += sum(map(self._spread, step.restored.tensors), np.zeros(self._shape))

    def result(self, step: Step) -> None:
        """Keep the result of an operator instead of running it again."""
        self._saved += self._spread(step.output_bytes)

    def copy(self, step: Step) -> None:
        """Copy a result that ran again."""
        self._again[-1] += self._seconds(step.forward)

    def exchange(self, row_bytes: float, *, told: bool, again: bool) -> None:
        """An exchange of rows of so many bytes, as many on the way back, and *again* where it is repeated.

        *told*: on the way out their numbers go ahead of them.
        """
        self._told[[0, 2]] += told, told and again
        self._row_bytes[: 2 + again] += row_bytes
        self._work.append(np.zeros((2, *self._shape)))
        self._pieces.append([])
        self._sent.append(row_bytes)
        if told and self._told_behind is None:
            self._told_behind = len(self._sent) - 1
        if again:
            self._again.append(np.zeros(self._shape))

    def passes(self) -> Passes:
        """All of it; of exchanges bytes alone."""
        forward, backward, again = self._moved.copy()
        forward[COMPUTE] = self._waited([work[0] for work in self._work])
        backward[COMPUTE] = self._waited([work[1] for work in self._work])
        alone = len(self._again) == 1
        again[COMPUTE] = self._again[0].min(axis=1) if alone else self._waited(self._again)
        row_bytes, told = (np.repeat(one[:, None], self._shape[0], axis=1) for one in (self._row_bytes, self._told))
        waits, late, late_bytes = self._held_up()
        return Passes(forward, backward, again, self._saved, self._restored, row_bytes, told, waits, late, late_bytes)

    def _held_up(self) -> tuple[Amounts, Amounts, Amounts]:
        """What kernels between the first exchange and the last wait for, as `Passes` has it."""
        layers = self._shape[0]
        waits, late, late_bytes = np.zeros((2, layers)), np.zeros((3, layers)), np.zeros(layers)
        between = [one for pieces in self._pieces[1:-1] for one in pieces]
        ahead, back = [one[0] for one in between], [one[1] for one in reversed(between)]
        again = [one[0] for one in between if one[2]]
        # The last transfer back goes before those of the forward pass that comes next, unless that is not its turn.
        waits[0] = waits_s(ahead, last=False)
        waits[1] = waits_s(back, last=not again) + waits_s(again, last=False)
        if self._told_behind is not None:
            for number, pieces in enumerate((ahead, again, back)):
                late[number] = late_s(pieces, self._launch_s)
            late_bytes[:] = sum(self._sent[self._told_behind : -1])
        return waits, late, late_bytes

    def _issue_s(self, priced: Priced) -> float:
        return priced.launches * self._launch_s + priced.looped * self._looped_launch_s

    def _seconds(self, priced: Priced) -> Amounts:
        return self._spread(priced.duration_ns / 1e9)

    def _spread(self, amount: Quantity) -> Amounts:
        flat = self._shape[0] * self._shape[1]
        return np.broadcast_to(np.asarray(amount, np.float64), (flat,)).reshape(self._shape)

    def _waited(self, work: list[Amounts]) -> Amounts:
        inner = sum((stretch.max(axis=1) for stretch in work[1:-1]), np.zeros(self._shape[0]))
        outer = [work[0], work[-1]] if len(work) > 1 else work
        return np.asarray(inner + sum(stretch.mean(axis=1) for stretch in outer))
