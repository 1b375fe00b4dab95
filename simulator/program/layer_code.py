"""The code of one layer: its steps written down as tasks in forward and backward order, and again where recomputed.

Tensors that autograd keeps are taken by the forward pass, or where operators run again, and freed by the backward pass
of their operator (see `keeping`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from simulator.engine.task import Allocation
from simulator.model.recompute import Stretch
from simulator.program.activation_offload import Parcel, Sent
from simulator.program.costs import Priced
from simulator.program.emitter import Emitter, allocation, tensors
from simulator.program.keeping import Keeping
from simulator.program.layer_memory import (
    AGAIN,
    INPUT,
    Run,
    Turn,
    backward_turns,
    forward_run,
    held,
    out,
    rerun,
    restored,
    result,
    saved,
)
from simulator.program.network import Transfer
from simulator.program.parts_in_turn import STREAMS, PartsInTurn
from simulator.program.ring_code import RingCode
from simulator.program.step import EXCHANGES, Round, Step

Later = Literal["never", "beside exchanges", "in a pass"]
"""When matmuls for gradients of weights come: at once, beside the layer's next exchange, in a pass of their own."""
Gradients = Callable[[tuple[str, ...]], list[Allocation]]
"""The gradients that a backward pass over the weights of these names allocates."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """A stretch of the layer that runs again, with its copy of a discarded result, priced."""

    stretch: Stretch
    restore: Step | None = None
    idle: frozenset[int] = frozenset()
    """Positions within it whose results nobody needs, so that they do not run."""


class LayerCode:
    """Writes the tasks of one layer. *keeps_input*: whether its input is kept for running all of it again. *sent*: what
    of it is in host memory in between. *region_ns*: what the host takes to enter it in each pass.
    """

    def __init__(
        self,
        emitter: Emitter,
        steps: Sequence[Step],
        reruns: Sequence[Rerun] = (),
        *,
        keeps_input: bool = False,
        sent: Sent | None = None,
        region_ns: int = 0,
    ) -> None:
        self.keeps_input = keeps_input
        self.uses = tuple(dict.fromkeys(name for step in steps for name in step.weights))
        """The parameters that its operators use."""
        self._emitter = emitter
        self._region_ns = region_ns
        self._steps = steps
        self._reruns = reruns
        self._sent = sent
        self._keeping = Keeping(steps, lambda step: step.saved)
        stretches = [one.stretch for one in reruns]
        self._loose = tuple(sorted({number for stretch in stretches for number in stretch.loose}))
        self._forward = forward_run(steps, frozenset(self._loose), self._keeping)
        self._backward = backward_turns(steps, stretches)
        self._again: dict[int, list[tuple[Rerun, Run]]] = {}
        for one in reruns:
            run = rerun(steps, one.stretch, one.idle, restores=one.restore is not None)
            self._again.setdefault(one.stretch.before, []).append((one, run))
        self._waiting: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
        self._parts = PartsInTurn(emitter)
        self._ring = RingCode(emitter)

    def forward(self, tag: str, *, first: Iterable[Allocation] = ()) -> None:
        """Write the forward pass, with what autograd keeps of it. The first task also takes *first*."""
        first = tuple(first)
        self._emitter.python(self._region_ns)
        if self._sent is not None:
            self._sent.offload.enter_forward(tag)
        for turn in self._forward.turns:
            self._step_forward(tag, turn, first if turn.number == 0 else ())
            self._send_off(tag, turn.number, first)
        self._free(tag, self._forward.frees)

    def backward(self, tag: str, gradients: Gradients, *, later: Later = "never") -> None:
        """Write the backward pass, from the last operator to the first, and what runs again within it. *gradients* of
        the weights used are taken; those that are matmuls may come *later*.
        """
        alive: tuple[str, ...] = ()
        self._emitter.python(self._region_ns)
        fill = partial(self.weights, tag, gradients) if later == "beside exchanges" else None
        if self._sent is not None:
            self._sent.offload.enter_backward(tag)
            for ending in (INPUT, *map(result, self._loose)):
                self._sent.offload.fetch(tag + ending)
        for number in reversed(range(len(self._steps))):
            step = self._steps[number]
            self._ring.close(step.ring_back)
            self._run_again(tag, number)
            if self._sent is not None:
                self._sent.offload.fetch(tag + saved(number))
            parted, back = step.parted if later != "never" else None, self._backward[number]
            gradient = back.gradient if later == "never" else back.gradient_put_off
            made = [] if parted else gradients(step.weights)
            taken = back.scratch if step.gradient_in_place else (gradient, *back.scratch)
            takes = [*made, *[one.of(tag) for one in taken]]
            self._use_weights(step)
            takes = self._go_round(step, step.rounds_back, takes)
            if step.ring_back is not None or step.beside is not None:
                self._ring.backward(step, takes, later=later != "never")
            else:
                self._run(step, parted.inputs if parted else step.backward, step.moves_back, takes, meanwhile=fill)
            self._emitter.release_held([item.key for item in made if item.kind == "workspace"])
            used = tuple([tag + ending for ending in back.used])
            if parted:
                used, alive = self._put_off(tag, number, used, alive)
            scratch = [tag + one.ending for one in back.scratch]
            if step.gradient_in_place:
                self._emitter.release_held([*scratch, *alive])
                alive = used
            else:
                self._emitter.release_held([*scratch, *alive, *used])
                alive = (tag + gradient.ending,)
        self._emitter.release_held([*alive, *(tag + result(number) for number in self._loose)])
        if fill is not None:
            fill()

    def _send_off(self, tag: str, number: int, first: Sequence[Allocation]) -> None:
        """Copy to the host what the step at *number* keeps, and behind the *first* one the layer's input if it is kept.

        The result of the step before is held until then, where it is what this one keeps.
        """
        if self._sent is None:
            return
        offload, away, step = self._sent.offload, self._sent.away, self._steps[number]
        for item in first if number == 0 and away.layer_input else ():
            if item.key == tag + INPUT:
                sizes = item.pieces or (item.bytes,)
                offload.put(item.key, Parcel("layer input", sizes, sizes), (item.key,))
        if number in away.loose:
            key = tag + result(number)
            offload.put(key, Parcel(step.name, (step.output_bytes,), (step.output_bytes,)), (key,))
        if number not in away.steps:
            return
        on_card = [tag + saved(number)]
        if number and self._keeping.hands_over(number - 1):
            on_card.append(tag + out(number - 1))
        there = tuple(key for key in on_card if self._emitter.holds(key))
        offload.put(tag + saved(number), offload.parcel(step), there)

    def weights(self, tag: str, gradients: Gradients) -> None:
        """Write the matmuls for gradients of weights that the backward pass has left."""
        for number, kept in self._waiting.pop(tag, []):
            step = self._steps[number]
            assert step.parted is not None
            made = gradients(step.weights)
            self._emitter.compute(step.name, step.kind, step.parted.weights, allocates=made)
            self._emitter.release_held([*(item.key for item in made if item.kind == "workspace"), *kept])

    def _put_off(
        self, tag: str, number: int, used: tuple[str, ...], alive: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Keep what the gradient of an operator's weights is made of, its input and the gradient of its result.

        Returns what is left to free of what is *used* up and *alive*.
        """
        read = {tag + each + ending for each in ("", AGAIN) for ending in (saved(number), out(number - 1))}
        kept = tuple(key for key in (*used, *alive) if self._emitter.holds(key) and (key in read or key in alive))
        self._waiting.setdefault(tag, []).append((number, kept))
        return tuple(key for key in used if key not in kept), ()

    def _run_again(self, tag: str, number: int) -> None:
        """Write what runs again before the backward pass of the operator at *number*."""
        for again, run in self._again.get(number, ()):
            with self._emitter.at(phase="recompute", layer=self._emitter.layer):
                self._pass_again(tag, run)
                if again.restore is not None:
                    self._put_back(tag, again.stretch, again.restore)

    def _pass_again(self, tag: str, run: Run) -> None:
        for turn in run.turns:
            if turn.runs:
                self._step_forward(tag, turn)
            else:
                self._emitter.take(*[one.of(tag) for one in turn.takes])
        self._free(tag, run.frees)
        self._parts.end()
        self._ring.close()

    def _put_back(self, tag: str, stretch: Stretch, restore: Step) -> None:
        """Copy what was made again to where its readers look for it; both are there for a while."""
        made = allocation(tag + held(stretch), "workspace", restore.output_bytes, pool=restore.pool)
        back = tensors(tag + restored(stretch), restore.saved_kind, restore.saved.tensors, pool=restore.pool)
        self._run(restore, restore.forward, (), [made, back])

    def _step_forward(self, tag: str, turn: Turn, first: Iterable[Allocation] = ()) -> None:
        """Run one operator forward, which also takes *first*, and free what nobody needs behind it."""
        step = self._steps[turn.number]
        self._ring.close(step.ring)
        self._use_weights(step)
        takes = self._go_round(step, step.rounds, [*first, *[one.of(tag) for one in turn.takes]])
        if step.ring is not None:
            self._ring.forward(step, step.ring, takes)
        else:
            self._run(step, step.forward, step.moves, takes, counts=step.counts)
        if step.waits:
            self._emitter.block_host()
        self._free(tag, turn.frees)

    def _use_weights(self, step: Step) -> None:
        """Have the host do what uses of weights ask of it beside launches."""
        self._emitter.python(len(step.weights) * self._emitter.framework.operator_ns)

    def _run(
        self,
        step: Step,
        priced: Priced,
        moves: tuple[Transfer, ...],
        takes: list[Allocation],
        *,
        counts: Transfer | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Write one direction of a step; *meanwhile* writes what runs beside its transfers."""
        emitter = self._emitter
        if step.parts > 1 and (self._parts.open or not step.communicates):
            if moves:
                self._parts.bring_home(step, step.parts, moves[0], takes)
            else:
                self._parts.write(step, step.parts, priced, takes)
            return
        if not step.communicates:
            emitter.compute(step.name, step.kind, priced, allocates=takes)
            return
        idle = not priced.launches and not np.any(priced.duration_ns)
        behind_exchange = step.name not in EXCHANGES and emitter.awaits(STREAMS["ep"])
        if moves and idle and emitter.awaited and counts is None and not behind_exchange:
            # One transfer behind another: nothing to compute stands between them. Behind an exchange another pass's
            # work may, and the library's transfer waits for that.
            deps = emitter.wait_instead()
        else:
            deps = (emitter.compute(f"{step.name} ready", "copy", priced, allocates=[] if moves else takes),)
        called_ns = 0 if step.graphed else emitter.framework.collective_ns
        if moves and counts is not None:
            emitter.python(called_ns)
            deps = (emitter.transfer(f"{step.name} counts", STREAMS["ep"], counts.kind, counts, deps=deps),)
            emitter.block_host()
        if step.parts > 1 and moves:
            self._parts.begin(step, step.parts, moves[0], deps, takes)
            return
        for move in moves:
            stream = STREAMS.get(move.collective.communicator, move.collective.communicator)
            launches = step.transfer_launches
            emitter.python(called_ns)
            deps = (
                emitter.transfer(step.name, stream, move.kind, move, deps=deps, allocates=takes, launches=launches),
            )
            takes = []
        if meanwhile is not None:
            meanwhile()
        if moves:
            emitter.await_(*deps)

    def _go_round(self, step: Step, rounds: tuple[Round, ...], takes: list[Allocation]) -> list[Allocation]:
        """Write *rounds*, the first of which takes what the operator *takes*; return what is left to take."""
        emitter = self._emitter
        for round_ in rounds:
            if round_.move is not None:
                ready = emitter.compute(f"{step.name} ready", "copy", Priced(0, 0, "measured"), allocates=takes)
                stream, takes = round_.move.collective.communicator, []
                launches = step.transfer_launches
                hop = emitter.transfer(
                    step.name, stream, round_.move.kind, round_.move, deps=(ready,), launches=launches
                )
            emitter.compute(step.name, step.kind, round_.compute, allocates=takes)
            takes = []
            if round_.move is not None:
                emitter.await_(hop)
        return takes

    def _free(self, tag: str, endings: Iterable[str]) -> None:
        """Free what is still there of what has these *endings*."""
        self._emitter.release_held([tag + ending for ending in endings])
