"""The code of tensor-parallel transfers beside products: in parts, or whole beside the gradients of a product.

A gather in parts opens a stretch, in which the products that read it are written part by part; another operator closes
it. A product before a scatter in parts opens one as well, and the scatter closes it.
"""

from __future__ import annotations

from simulator.engine.task import Allocation
from simulator.program.costs import Priced
from simulator.program.emitter import Emitter
from simulator.program.network import Transfer
from simulator.program.parts_in_turn import PartsInTurn
from simulator.program.step import Beside, Parted, Ring, Step


class RingCode:
    """Writes the steps of one layer that have such transfers."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._parts = PartsInTurn(emitter)

    def close(self, ring: Ring | None = None) -> None:
        """Before a step that is in parts as *ring* says: end what is being written, if it is not."""
        if ring is None:
            self._parts.end()

    def forward(self, step: Step, ring: Ring, takes: list[Allocation]) -> None:
        """Write the forward pass of *step*."""
        if not step.communicates:
            self._product(step, ring, step.forward, takes)
        elif step.home:
            if not self._parts.open:
                self._parts.start(ring.parts)
            self._parts.bring_home(step, ring.parts, step.moves[0], takes, own=ring.own)
            if step.forward.launches:
                self._emitter.compute(step.name, step.kind, step.forward)
        else:
            self._gather(step, ring, step.forward, step.moves[0], takes)

    def backward(self, step: Step, takes: list[Allocation], *, later: bool) -> None:
        """Write its backward pass; *later*: the gradients of weights come in their own time."""
        ring, parted = step.ring_back, step.parted
        if ring is None:
            assert parted is not None
            assert step.beside is not None
            self._beside(step, parted, step.beside, takes, later=later)
        elif step.communicates:
            self._gather(step, ring, step.backward, step.moves_back[0], takes)
        else:
            self._product(step, ring, parted.inputs if parted else step.backward, takes)
            self._parts.end()
            if parted and not later:
                self._emitter.compute(step.name, step.kind, parted.weights)

    def _gather(self, step: Step, ring: Ring, first: Priced, move: Transfer, takes: list[Allocation]) -> None:
        ready = self._emitter.compute(f"{step.name} ready", "copy", first)
        self._parts.begin(step, ring.parts, move, (ready,), takes, own=ring.own)

    def _product(self, step: Step, ring: Ring, first: Priced, takes: list[Allocation]) -> None:
        """Its parts, behind kernels that come *first*."""
        if not self._parts.open:
            self._parts.start(ring.parts)
        if first.launches:
            self._emitter.compute(step.name, step.kind, first)
        self._parts.write(step, ring.parts, ring.each, takes)

    def _beside(self, step: Step, parted: Parted, beside: Beside, takes: list[Allocation], *, later: bool) -> None:
        """A backward pass in two with a transfer beside each part; *later*: nothing is there beside the second.

        Transfers are issued ahead of what runs beside them.
        """
        emitter = self._emitter
        if beside.inputs is not None:
            ready = emitter.compute(f"{step.name} ready", "copy", Priced(0, 0, "measured"), allocates=takes)
            gathered, takes = self._transfer(step, beside.inputs, ready), []
        made = emitter.compute(step.name, step.kind, parted.inputs, allocates=takes)
        if beside.inputs is not None:
            emitter.await_(gathered)
        moved = self._transfer(step, beside.weights, made)
        if not later:
            emitter.compute(step.name, step.kind, parted.weights)
        emitter.await_(moved)

    def _transfer(self, step: Step, move: Transfer, behind: int) -> int:
        """Write a transfer that starts *behind* a task."""
        return self._emitter.transfer(step.name, move.collective.communicator, move.kind, move, deps=(behind,))
