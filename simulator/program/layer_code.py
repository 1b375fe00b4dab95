"""The code of one layer: its operators, priced, and written down as tasks in forward and backward order.

Between operators one result is alive: an operator's output is freed when the next one has read it, unless autograd
saves it: an operator that saves a tensor as large as the result before it is taken to save that. Tensors that autograd
keeps are taken by the forward (or the recomputed forward) and freed by the backward pass of their operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import numpy as np

from simulator.engine.task import Allocation, Quantity
from simulator.model.operator import Kernel, Operator
from simulator.parallel.sharding import Adapter
from simulator.program.costs import Costs, Priced, adapters_of
from simulator.program.emitter import Emitter, allocation, tensors
from simulator.program.expert_load import LayerLoad
from simulator.program.network import Network, Transfer

STREAMS = {"ep": "all_to_all", "etp": "tp"}
"""Stream of a communicator's transfers where it has not its own name."""
Gradients = Callable[[tuple[str, ...]], list[Allocation]]
"""The gradients that a backward pass over the weights of these names allocates."""
EXCHANGES = ("dispatch", "combine")
_HAIR = 1e-6
"""Share of a tensor that rounding may add to a count of them."""


@dataclass(frozen=True, slots=True)
class Round:
    """A kernel and the transfer beside it; what follows waits for both."""

    compute: Priced
    move: Transfer | None
    """None between ranks that are one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operator of the layer, priced."""

    name: str
    kind: str
    forward: Priced
    backward: Priced
    output_bytes: Quantity
    workspace_bytes: Quantity
    backward_workspace_bytes: Quantity
    saved: tuple[Quantity, ...]
    """Sizes of the tensors that it keeps for the backward pass, in bytes."""
    weights: tuple[str, ...] = ()
    """Parameters used; the backward pass makes the gradients of those that are trained."""
    kept: tuple[float, ...] = ()
    """The same per routed row or in all, less what adapters keep: comparable with *output_size*."""
    output_size: float = 0.0
    """Size of its result, per routed row or in all."""
    communicates: bool = False
    """Whether it moves data between ranks: between ranks that are one, it moves nothing."""
    moves: tuple[Transfer, ...] = ()
    """Transfers of the forward pass, one after the other."""
    moves_back: tuple[Transfer, ...] = ()
    rounds: tuple[Round, ...] = ()
    """Kernels of the forward pass that run beside a transfer each, before the other kernels."""
    rounds_back: tuple[Round, ...] = ()
    gradient_in_place: bool = False
    """The gradient of its input is the tensor that it saves."""

    @property
    def output_kind(self) -> str:
        """What its output counts as in the ledger."""
        return "communication buffers" if self.communicates else "workspace"


class Pricer:
    """Prices the operators of layers."""

    def __init__(self, costs: Costs, network: Network, *, tokens: int, all_trained: bool) -> None:
        self._costs = costs
        self._network = network
        self._tokens = tokens
        self._all_trained = all_trained

    def step(self, operator: Operator, adapters: dict[str, Adapter], load: LayerLoad | None) -> Step:
        """Price *operator*; *load* is there for layers with routed experts."""
        carried = adapters_of(operator, adapters)
        rows = load.rows if load is not None else None
        routed = load if operator.rows == "routed" else None
        per_row: Quantity = routed.total_rows.astype(np.float64) if routed is not None else 1.0
        seen: Quantity = per_row if routed is not None else float(self._tokens)
        kept = self._kept(operator, adapters)
        rounds, rounds_back = self._rounds(operator, back=False), self._rounds(operator, back=True)
        rest = replace(
            operator, forward=operator.forward[len(rounds) :], backward=operator.backward[len(rounds_back) :]
        )
        return Step(
            name=operator.name,
            kind=_kind(operator),
            forward=self._costs.forward(rest, carried, self._tokens, rows),
            backward=self._costs.backward(rest, carried, self._tokens, rows, trained=self._all_trained),
            output_bytes=operator.output_bytes * (load.own_rows if load and operator.name == "combine" else per_row),
            workspace_bytes=operator.workspace_bytes * per_row,
            backward_workspace_bytes=operator.backward_workspace_bytes * per_row,
            saved=(*(size * per_row for size in kept), *(2.0 * adapter.rank * seen for adapter in carried)),
            weights=operator.weights,
            kept=tuple(kept),
            output_size=operator.output_bytes,
            communicates=bool(
                operator.name in EXCHANGES or operator.forward_collectives or operator.backward_collectives
            ),
            moves=self._moves(operator, load, adapters, back=False),
            moves_back=self._moves(operator, load, adapters, back=True),
            rounds=rounds,
            rounds_back=rounds_back,
            gradient_in_place=operator.gradient_in_place,
        )

    def _rounds(self, operator: Operator, *, back: bool) -> tuple[Round, ...]:
        """The kernels of one direction that run beside a transfer each, with those."""
        kernels = operator.backward if back else operator.forward
        beside = operator.backward_beside if back else operator.forward_beside
        return tuple(
            Round(self._costs.kernel(kernel, back=back), self._network.collective(collective, collective.bytes))
            for kernel, collective in zip(kernels, beside, strict=False)
        )

    def _kept(self, operator: Operator, adapters: dict[str, Adapter]) -> list[float]:
        """Sizes of what is kept for backward: not what only gradients of weights need of which none is trained."""
        return [
            tensor.bytes
            for tensor in operator.saved
            if tensor.needed_for == "input_gradient"
            or self._all_trained
            or any(weight in adapters for weight in tensor.weights)
        ]

    def _moves(
        self, operator: Operator, load: LayerLoad | None, adapters: dict[str, Adapter], *, back: bool
    ) -> tuple[Transfer, ...]:
        """Transfers of one direction: dispatch sends rows to their experts, combine brings them home, and back."""
        found: list[Transfer | None] = []
        if operator.name in EXCHANGES and load is not None:
            sent = load.sent_rows * (operator.backward_payload_bytes if back else operator.payload_bytes)
            homeward = (operator.name == "combine") != back
            found.append(self._network.exchange(sent.T if homeward else sent))
        routed = load is not None and operator.rows == "routed"
        per_row = load.total_rows.astype(np.float64) if load is not None and routed else 1.0
        found += [
            self._network.collective(collective, collective.bytes * per_row)
            for collective in (operator.backward_collectives if back else operator.forward_collectives)
            if not collective.weights or self._all_trained or any(w in adapters for w in collective.weights)
        ]
        return tuple(transfer for transfer in found if transfer is not None)


class LayerCode:
    """Writes the tasks of one layer."""

    def __init__(self, emitter: Emitter, steps: list[Step]) -> None:
        self._emitter = emitter
        self._steps = steps
        self._handed_over = [
            bool(mine.output_size) and mine.output_size in after.kept for mine, after in pairwise(steps)
        ]
        self._handed_over.append(False)
        self._scratch = [_temporaries(step, step.workspace_bytes) for step in steps]
        self._backward_scratch = [_temporaries(step, step.backward_workspace_bytes) for step in steps]

    def forward(self, tag: str, *, keep: bool, first: list[Allocation] | None = None, stop_early: bool = False) -> None:
        """Write the forward pass; *keep* what autograd needs. The first task also takes *first*.

        PyTorch's non-reentrant checkpoint stops a recomputation *early*: once the last tensor that backward needs is
        there, which is when the last operator that saves any is about to run.
        """
        alive = ""
        last = max((number for number, step in enumerate(self._steps) if step.kept), default=0)
        for number, step in enumerate(self._steps):
            if stop_early and number == last:
                self._keep_input(tag, number)
                break
            takes = list(first or []) if number == 0 else []
            if keep:
                takes.append(tensors(f"{tag}.saved.{number}", _saved_kind(step), self._own_saved(number)))
            handed = keep and self._handed_over[number]
            kind = _saved_kind(self._steps[number + 1]) if handed else step.output_kind
            output = allocation(f"{tag}.out.{number}", kind, step.output_bytes)
            scratch = Allocation(f"{tag}.scratch.{number}", "workspace", *self._scratch[number])
            takes += [output, scratch]
            takes = self._go_round(step, step.rounds, takes)
            self._run(step, step.forward, step.moves, takes, blocks_host=step.name == "dispatch")
            self._free(scratch.key, alive)
            alive = "" if handed else output.key
        self._free(alive)

    def backward(self, tag: str, gradients: Gradients) -> None:
        """Write the backward pass, from the last operator to the first. *gradients* of the weights used are taken."""
        alive: tuple[str, ...] = ()
        for number in reversed(range(len(self._steps))):
            step = self._steps[number]
            before = self._steps[max(number - 1, 0)]
            gradient = allocation(f"{tag}.grad.{number}", step.output_kind, before.output_bytes)
            scratch = Allocation(f"{tag}.scratch.{number}", "workspace", *self._backward_scratch[number])
            made = gradients(step.weights)
            takes = [*made, *(() if step.gradient_in_place else (gradient,)), scratch]
            takes = self._go_round(step, step.rounds_back, takes)
            self._run(step, step.backward, step.moves_back, takes, blocks_host=False)
            self._free(*(item.key for item in made if item.kind == "workspace"))
            saved = (f"{tag}.saved.{number}", f"{tag}.out.{number - 1}")
            if step.gradient_in_place:
                self._free(scratch.key, *alive)
                alive = saved
            else:
                self._free(scratch.key, *alive, *saved)
                alive = (gradient.key,)
        self._free(*alive)

    def _run(
        self, step: Step, priced: Priced, moves: tuple[Transfer, ...], takes: list[Allocation], *, blocks_host: bool
    ) -> None:
        emitter = self._emitter
        if not step.communicates:
            emitter.compute(step.name, step.kind, priced, allocates=takes)
            return
        position = emitter.compute(f"{step.name} ready", "copy", priced, allocates=[] if moves else takes)
        if moves and blocks_host:
            emitter.block_host()
        for move in moves:
            stream = STREAMS.get(move.collective.communicator, move.collective.communicator)
            position = emitter.transfer(step.name, stream, move.kind, move, deps=(position,), allocates=takes)
            takes = []
        if moves:
            emitter.await_(position)

    def _go_round(self, step: Step, rounds: tuple[Round, ...], takes: list[Allocation]) -> list[Allocation]:
        """Write *rounds*, the first of which takes what the operator *takes*; return what is left to take."""
        emitter = self._emitter
        for round_ in rounds:
            if round_.move is not None:
                ready = emitter.compute(f"{step.name} ready", "copy", Priced(0, 0, "measured"), allocates=takes)
                stream, takes = round_.move.collective.communicator, []
                hop = emitter.transfer(step.name, stream, round_.move.kind, round_.move, deps=(ready,))
            emitter.compute(step.name, step.kind, round_.compute, allocates=takes)
            takes = []
            if round_.move is not None:
                emitter.await_(hop)
        return takes

    def _keep_input(self, tag: str, number: int) -> None:
        """Keep what an operator that does not run would have saved: its input, which is there."""
        if not self._handed_over[number - 1]:
            kept = tensors(f"{tag}.saved.{number}", _saved_kind(self._steps[number]), self._own_saved(number))
            self._emitter.take(kept)

    def _own_saved(self, number: int) -> tuple[Quantity, ...]:
        """What an operator saves beside the result that the one before handed over."""
        step = self._steps[number]
        if number == 0 or not self._handed_over[number - 1]:
            return step.saved
        handed = step.kept.index(self._steps[number - 1].output_size)
        return (*step.saved[:handed], *step.saved[handed + 1 :])

    def _free(self, *keys: str) -> None:
        self._emitter.release(*(key for key in keys if self._emitter.holds(key)))


def _temporaries(step: Step, size: Quantity) -> tuple[Quantity, str, tuple[Quantity, ...]]:
    """(size, tier, pieces) of temporaries of *size* bytes at once: tensors as large as the largest that the operator
    saves or returns.

    One that is not whole stands for a tensor that makes room for the result before all are there: to the allocator
    it is whole.
    """
    largest = max((*step.saved, step.output_bytes), key=np.max)
    count = ceil(float(np.min(size / largest)) - _HAIR) if np.all(largest) else 1
    return size, "hbm", (largest,) * count if count > 1 else ()


def _saved_kind(step: Step) -> str:
    return "logits" if step.kind == "loss" else "saved activations"


def _kind(operator: Operator) -> str:
    """The kind of the kernel that moves or computes most."""

    def weight(kernel: Kernel) -> float:
        return max(kernel.flops / 200.0, kernel.bytes)

    kernels = operator.forward or operator.backward
    return max(kernels, key=weight).kind if kernels else "copy"
