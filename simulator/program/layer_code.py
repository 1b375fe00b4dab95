"""The code of one layer: its steps written down as tasks in forward and backward order, and again where recomputed.

Tensors that autograd keeps are taken by the forward pass, or where operators run again, and freed by the backward pass
of their operator (see `keeping`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Literal

import numpy as np

from simulator.engine.task import Allocation, Quantity
from simulator.model.recompute import Stretch
from simulator.program.activation_offload import Parcel, Sent
from simulator.program.costs import Priced
from simulator.program.emitter import Emitter, allocation, tensors
from simulator.program.keeping import Keeping
from simulator.program.network import Transfer
from simulator.program.parts_in_turn import STREAMS, PartsInTurn
from simulator.program.ring_code import RingCode
from simulator.program.step import EXCHANGES, Round, Step

Later = Literal["never", "beside exchanges", "in a pass"]
"""When matmuls for gradients of weights come: at once, beside the layer's next exchange, in a pass of their own."""
Gradients = Callable[[tuple[str, ...]], list[Allocation]]
"""The gradients that a backward pass over the weights of these names allocates."""
_HAIR = 1e-6
"""Share of a tensor that rounding may add to a count of them."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """A stretch of the layer that runs again, with its copy of a discarded result, priced."""

    stretch: Stretch
    restore: Step | None = None
    idle: frozenset[int] = frozenset()
    """Positions within it whose results nobody needs, so that they do not run."""


class LayerCode:
    """Writes the tasks of one layer. *keeps_input*: whether its input is kept for running all of it again. *sent*: what
    of it is in host memory in between.
    """

    def __init__(
        self,
        emitter: Emitter,
        steps: Sequence[Step],
        reruns: Sequence[Rerun] = (),
        *,
        keeps_input: bool = False,
        sent: Sent | None = None,
    ) -> None:
        self.keeps_input = keeps_input
        self.uses = tuple(dict.fromkeys(name for step in steps for name in step.weights))
        """The parameters that its operators use."""
        self._emitter = emitter
        self._steps = steps
        self._reruns = reruns
        self._sent = sent
        self._forward = Keeping(steps, lambda step: step.saved)
        self._loose = frozenset(number for rerun in reruns for number in rerun.stretch.loose)
        self._scratch = [_temporaries(step, step.workspace_bytes) for step in steps]
        self._backward_scratch = [_temporaries(step, step.backward_workspace_bytes) for step in steps]
        self._waiting: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
        self._parts = PartsInTurn(emitter)
        self._ring = RingCode(emitter)

    def forward(self, tag: str, *, first: Iterable[Allocation] = ()) -> None:
        """Write the forward pass, with what autograd keeps of it. The first task also takes *first*."""
        done: tuple[str, ...] = ()
        first = tuple(first)
        if self._sent is not None:
            self._sent.offload.enter_forward(tag)
        for number, step in enumerate(self._steps):
            own = tensors(_saved(tag, number), step.saved_kind, self._forward.own(number), pool=step.pool)
            takes = [*first, own] if number == 0 else [own]
            if number in self._loose:
                output = allocation(_result(tag, number), "saved activations", step.output_bytes, pool=step.pool)
            else:
                output = self._output(tag, number, self._forward)
            self._step_forward(tag, number, [*takes, output], done)
            self._send_off(tag, number, first)
            done = () if number in self._loose or self._forward.hands_over(number) else (output.key,)
        self._free(*done)

    def backward(self, tag: str, gradients: Gradients, *, later: Later = "never") -> None:
        """Write the backward pass, from the last operator to the first, and what runs again within it. *gradients* of
        the weights used are taken; those that are matmuls may come *later*.
        """
        alive: tuple[str, ...] = ()
        fill = partial(self.weights, tag, gradients) if later == "beside exchanges" else None
        if self._sent is not None:
            self._sent.offload.enter_backward(tag)
            for key in (_input(tag), *(_result(tag, number) for number in sorted(self._loose))):
                self._sent.offload.fetch(key)
        for number in reversed(range(len(self._steps))):
            step = self._steps[number]
            self._ring.close(step.ring_back)
            self._run_again(tag, number)
            if self._sent is not None:
                self._sent.offload.fetch(_saved(tag, number))
            parted = step.parted if later != "never" else None
            before = self._steps[max(number - 1, 0)]
            kind = "saved activations" if later != "never" and before.parted else step.output_kind
            gradient = allocation(f"{tag}.grad.{number}", kind, before.output_bytes, pool=step.pool)
            temporaries = self._backward_scratch[number]
            scratch = Allocation(f"{tag}.scratch.{number}", "workspace", *temporaries, pool=step.pool)
            made = [] if parted else gradients(step.weights)
            takes = [*made, *(() if step.gradient_in_place else (gradient,)), scratch]
            takes = self._go_round(step, step.rounds_back, takes)
            if step.ring_back is not None or step.beside is not None:
                self._ring.backward(step, takes, later=later != "never")
            else:
                self._run(step, parted.inputs if parted else step.backward, step.moves_back, takes, meanwhile=fill)
            self._free(*(item.key for item in made if item.kind == "workspace"))
            saved = self._used_up(tag, number)
            if parted:
                saved, alive = self._put_off(tag, number, saved, alive)
            if step.gradient_in_place:
                self._free(scratch.key, *alive)
                alive = saved
            else:
                self._free(scratch.key, *alive, *saved)
                alive = (gradient.key,)
        self._free(*alive, *(_result(tag, number) for number in sorted(self._loose)))
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
            if item.key == _input(tag):
                sizes = item.pieces or (item.bytes,)
                offload.put(item.key, Parcel("layer input", sizes, sizes), (item.key,))
        if number in away.loose:
            offload.put(
                _result(tag, number),
                Parcel(step.name, (step.output_bytes,), (step.output_bytes,)),
                (_result(tag, number),),
            )
        if number not in away.steps:
            return
        held = [_saved(tag, number)]
        if number and self._forward.hands_over(number - 1):
            held.append(f"{tag}.out.{number - 1}")
        on_card = tuple(key for key in held if self._emitter.holds(key))
        offload.put(_saved(tag, number), offload.parcel(step), on_card)

    def weights(self, tag: str, gradients: Gradients) -> None:
        """Write the matmuls for gradients of weights that the backward pass has left."""
        for number, kept in self._waiting.pop(tag, []):
            step = self._steps[number]
            assert step.parted is not None
            made = gradients(step.weights)
            self._emitter.compute(step.name, step.kind, step.parted.weights, allocates=made)
            self._free(*(item.key for item in made if item.kind == "workspace"), *kept)

    def _put_off(
        self, tag: str, number: int, saved: tuple[str, ...], alive: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Keep what the gradient of an operator's weights is made of, its input and the gradient of its result.

        Returns what is left to free of what is *saved* and *alive*.
        """
        read = {f"{each}.{name}" for each in (tag, _again(tag)) for name in (f"saved.{number}", f"out.{number - 1}")}
        kept = tuple(key for key in (*saved, *alive) if self._emitter.holds(key) and (key in read or key in alive))
        self._waiting.setdefault(tag, []).append((number, kept))
        return tuple(key for key in saved if key not in kept), ()

    def _used_up(self, tag: str, number: int) -> tuple[str, ...]:
        """What nobody needs behind the backward pass of an operator."""
        passes = (tag, _again(tag)) if self._reruns else (tag,)
        return (
            *(_saved(each, number) for each in passes),
            *(f"{each}.out.{number - 1}" for each in passes),
            *(_held(tag, rerun) for rerun in self._reruns if rerun.stretch.positions[0] == number),
            *(_restored(tag, rerun) for rerun in self._reruns if rerun.stretch.restored_until == number),
        )

    def _run_again(self, tag: str, number: int) -> None:
        """Write what runs again before the backward pass of the operator at *number*."""
        for rerun in self._reruns:
            if rerun.stretch.before == number:
                with self._emitter.at(phase="recompute", layer=self._emitter.layer):
                    self._pass_again(tag, rerun)
                    if rerun.restore is not None:
                        self._put_back(tag, rerun, rerun.restore)

    def _pass_again(self, tag: str, rerun: Rerun) -> None:
        """PyTorch's checkpoint stops *early*: once the last tensor that backward needs is there, which is when the last
        operator that saves any is about to run.
        """
        stretch, again = rerun.stretch, _again(tag)
        runs = frozenset(stretch.positions) - stretch.results - rerun.idle
        keeping = Keeping(self._steps, lambda step: step.restored, lambda n: n in runs and n + 1 in stretch.positions)
        stop = max((n for n, step in enumerate(self._steps) if step.saved.sizes or step.restored.sizes), default=0)
        done: tuple[str, ...] = ()
        for number in stretch.positions:
            step = self._steps[number]
            own = tensors(_saved(again, number), step.saved_kind, keeping.own(number), pool=step.pool)
            if stretch.stops_early and number == stop:
                # It would have saved its input, which is there.
                self._emitter.take(*([] if number and keeping.hands_over(number - 1) else [own]))
                break
            if number in stretch.results | rerun.idle:
                self._emitter.take(own)
                done += (_result(tag, number),) if number in stretch.loose else ()
                continue
            holds = stretch.holds_result and rerun.restore is None and number == stretch.positions[-1]
            output = self._output(again, number, keeping)
            if holds:
                output = allocation(_held(tag, rerun), step.output_kind, step.output_bytes, pool=step.pool)
            self._step_forward(again, number, [own, output], done)
            done = () if holds or keeping.hands_over(number) else (output.key,)
        self._free(*done)
        self._parts.end()
        self._ring.close()

    def _put_back(self, tag: str, rerun: Rerun, restore: Step) -> None:
        """Copy what was made again to where its readers look for it; both are there for a while."""
        held = allocation(_held(tag, rerun), "workspace", restore.output_bytes, pool=restore.pool)
        back = tensors(_restored(tag, rerun), restore.saved_kind, restore.saved.tensors, pool=restore.pool)
        self._run(restore, restore.forward, (), [held, back])

    def _output(self, tag: str, number: int, keeping: Keeping) -> Allocation:
        step = self._steps[number]
        kind = self._steps[number + 1].saved_kind if keeping.hands_over(number) else step.output_kind
        return allocation(f"{tag}.out.{number}", kind, step.output_bytes, pool=step.pool)

    def _step_forward(self, tag: str, number: int, takes: list[Allocation], done: tuple[str, ...]) -> None:
        """Run one operator forward, and free what was only there for it to read: *done*."""
        step = self._steps[number]
        scratch = Allocation(f"{tag}.scratch.{number}", "workspace", *self._scratch[number], pool=step.pool)
        self._ring.close(step.ring)
        takes = self._go_round(step, step.rounds, [*takes, scratch])
        if step.ring is not None:
            self._ring.forward(step, step.ring, takes)
        else:
            self._run(step, step.forward, step.moves, takes, counts=step.counts)
        if step.waits:
            self._emitter.block_host()
        self._free(scratch.key, *done)

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
        if moves and counts is not None:
            deps = (emitter.transfer(f"{step.name} counts", STREAMS["ep"], counts.kind, counts, deps=deps),)
            emitter.block_host()
        if step.parts > 1 and moves:
            self._parts.begin(step, step.parts, moves[0], deps, takes)
            return
        for move in moves:
            stream = STREAMS.get(move.collective.communicator, move.collective.communicator)
            launches = step.transfer_launches
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

    def _free(self, *keys: str) -> None:
        self._emitter.release_held(keys)


def _temporaries(step: Step, size: Quantity) -> tuple[Quantity, str, tuple[Quantity, ...]]:
    """(size, tier, pieces) of temporaries of *size* bytes at once: tensors as large as the largest that the operator
    saves or returns.

    One that is not whole stands for a tensor that makes room for the result before all are there: to the allocator
    it is whole.
    """
    largest = max((*step.saved.tensors, *step.restored.tensors, step.output_bytes), key=_most)
    count = ceil(_least(size / largest) - _HAIR) if _least(largest) else 1
    return size, "hbm", (largest,) * count if count > 1 else ()


def _most(size: Quantity) -> float:
    return float(size.max()) if isinstance(size, np.ndarray) else size


def _least(size: Quantity) -> float:
    return float(size.min()) if isinstance(size, np.ndarray) else size


def _saved(tag: str, number: int) -> str:
    """Key of what the operator at *number* keeps beside the result of the one before."""
    return f"{tag}.saved.{number}"


def _result(tag: str, number: int) -> str:
    """Key of a result that is kept for a stretch alone."""
    return f"{tag}.result.{number}"


def _input(tag: str) -> str:
    """Key of a layer's input, which is kept for running the layer again."""
    return f"{tag}.input"


def _again(tag: str) -> str:
    """The tag of what runs again."""
    return f"{tag} again"


def _held(tag: str, rerun: Rerun) -> str:
    """Key of the result that a stretch made again."""
    return f"{tag}.held.{rerun.stretch.positions[0]}"


def _restored(tag: str, rerun: Rerun) -> str:
    """Key of the discarded tensors that a stretch brings back."""
    return f"{tag}.restored.{rerun.stretch.positions[0]}"
