"""Steps: the operators of a layer, priced for one stage's ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from simulator.engine.task import Quantity
from simulator.hardware.curve import number_format
from simulator.model.operator import Collective, Kernel, Operator, Saved
from simulator.parallel.sharding import Adapter
from simulator.program.costs import Costs, Priced, adapters_of
from simulator.program.emitter import COMPUTE
from simulator.program.expert_load import LayerLoad
from simulator.program.network import Network, Transfer

MATMULS = ("gemm", "grouped_gemm")
GRAPHS = "graphs"
"""The pool of memory that CUDA graphs share."""
EXCHANGES = ("dispatch", "dispatch_weights", "combine")


@dataclass(frozen=True, slots=True)
class Kept:
    """Tensors that a step keeps for the backward pass."""

    tensors: tuple[Quantity, ...] = ()
    """Their bytes."""
    sizes: tuple[float, ...] = ()
    """The same per routed row or in all, less what adapters keep: comparable with *output_size* of a step."""
    nodes: tuple[int, ...] = ()
    """How many nodes of autograd's graph keep each of *tensors*; those beyond the last are kept by one."""


NOTHING_KEPT = Kept()


@dataclass(frozen=True, slots=True)
class Round:
    """A kernel and the transfer beside it; what follows waits for both."""

    compute: Priced
    move: Transfer | None
    """None between ranks that are one."""


@dataclass(frozen=True, slots=True)
class Parted:
    """A backward pass in two, the second of which may come later."""

    inputs: Priced
    weights: Priced


@dataclass(frozen=True, slots=True)
class Ring:
    """One direction of an operator in parts, whose products run beside transfers of other parts."""

    parts: int
    own: bool
    """Whether a rank has or keeps one of them, so that it is not sent."""
    each: Priced
    """The products of one part; nothing where there is none."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Transfers beside a backward pass in two."""

    inputs: Transfer | None
    """Brings what the gradients of weights read, beside the gradient of the input."""
    weights: Transfer
    """Moves the gradient of the input, beside the gradients of weights."""


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
    saved: Kept
    """Kept from the forward to the backward pass."""
    restored: Kept = NOTHING_KEPT
    """Kept from where operators run again."""
    weights: tuple[str, ...] = ()
    """Parameters used; the backward pass makes the gradients of those that are trained."""
    output_size: float = 0.0
    """Size of its result, per routed row or in all."""
    counts: Transfer | None = None
    """How many rows go where, which the host waits for before it issues the transfers; None where it knows."""
    waits: bool = False
    """Whether the host waits for its forward kernels."""
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
    matrices: tuple[float, ...] = ()
    """Bytes of the weights that its products multiply with, which autograd keeps for the gradient of their input."""
    parts: int = 1
    """Parts of its rows that are exchanged and computed one after the other: kernels and transfers are those of one."""
    graphed: bool = False
    """Whether it is part of a CUDA graph: the host launches none of it, and its tensors are of the graphs' pool."""
    parted: Parted | None = None
    """Its backward pass, where the gradients of its weights are matmuls."""
    beside: Beside | None = None
    """What runs beside the two parts of that."""
    ring: Ring | None = None
    """Its products, or its transfer, forward in parts: `forward` is what comes before, a transfer is of one part."""
    ring_back: Ring | None = None
    """The same of the gradients of inputs: of `backward` and, where it is in two, of the first of them."""
    home: bool = False
    """Whether its transfer forward is of what products before it made."""

    def in_parts(self, parts: int, part: Step) -> Step:
        """The same in so many *parts*, priced as one *part*."""
        forward, backward, moves, moves_back = part.forward, part.backward, part.moves, part.moves_back
        return replace(
            self, forward=forward, backward=backward, moves=moves, moves_back=moves_back, parted=None, parts=parts
        )

    @property
    def pool(self) -> str:
        """The pool that its tensors come from."""
        return GRAPHS if self.graphed else COMPUTE

    @property
    def transfer_launches(self) -> int:
        """What the host launches of each of its transfers."""
        return 0 if self.graphed else 1

    @property
    def output_kind(self) -> str:
        """What its output counts as in the ledger."""
        return "communication buffers" if self.communicates else "workspace"

    @property
    def saved_kind(self) -> str:
        """What its saved tensors count as."""
        return "logits" if self.kind == "loss" else "saved activations"


class Pricer:
    """Prices the operators of layers, each once however often it is asked for with the same load."""

    def __init__(self, costs: Costs, network: Network, *, tokens: int, all_trained: bool) -> None:
        self._costs = costs
        self._network = network
        self._tokens = tokens
        self._all_trained = all_trained
        self._known: dict[tuple[Operator, tuple[Adapter, ...], frozenset[str], int], tuple[Step, LayerLoad | None]] = {}
        """By operator without what it keeps, its adapters, all that carry one, and the load's identity."""

    def step(
        self, operator: Operator, adapters: dict[str, Adapter], load: LayerLoad | None, *, again: bool = False
    ) -> Step:
        """Price *operator*; *load* is there for layers with routed experts. *again*: it runs in the backward pass too,
        and its adapters' products are kept from then on.
        """
        carried = adapters_of(operator, adapters)
        bare = replace(operator, saved=(), restored=())
        key = bare, carried, frozenset(adapters), id(load)
        if key not in self._known:
            self._known[key] = self._bare(bare, adapters, load), load
        per_row = _per_row(operator, load)
        seen: Quantity = per_row if operator.rows == "routed" and load is not None else float(self._tokens)
        thin = tuple(2.0 * adapter.rank * seen for adapter in carried)
        saved, restored = (
            self._kept(tensors, adapters, per_row, () if elsewhere else thin)
            for tensors, elsewhere in ((operator.saved, again), (operator.restored, not again))
        )
        return replace(self._known[key][0], saved=saved, restored=restored)

    def _bare(self, operator: Operator, adapters: dict[str, Adapter], load: LayerLoad | None) -> Step:
        """The step of *operator* without what it keeps."""
        carried = adapters_of(operator, adapters)
        rows = load.rows if load is not None else None
        per_row = _per_row(operator, load)
        rounds, rounds_back = self._rounds(operator, back=False), self._rounds(operator, back=True)
        forward, each = _in_parts(operator.forward[len(rounds) :], operator.parts)
        backward, each_back = _in_parts(operator.backward[len(rounds_back) :], operator.parts_back)
        rest = replace(operator, forward=forward, backward=backward)
        part = self._costs.forward(replace(operator, forward=each), (), self._tokens, rows)
        part_back, _ = self._costs.backward_parts(
            replace(operator, backward=each_back), (), self._tokens, rows, trained=False
        )
        inputs, weights = self._costs.backward_parts(rest, carried, self._tokens, rows, trained=self._all_trained)
        multiplies = any(kernel.kind in MATMULS for kernel in operator.backward_weight)
        parted = Parted(inputs, weights) if weights is not None and multiplies else None
        beside = self._collectives(operator.beside_gradients, adapters)
        return Step(
            name=operator.name,
            kind=_kind(operator),
            forward=self._costs.forward(rest, carried, self._tokens, rows),
            backward=inputs if weights is None else inputs + weights,
            output_bytes=operator.output_bytes * (load.own_rows if load and operator.name == "combine" else per_row),
            workspace_bytes=operator.workspace_bytes * per_row,
            backward_workspace_bytes=operator.backward_workspace_bytes * per_row,
            saved=NOTHING_KEPT,
            weights=operator.weights,
            output_size=operator.output_bytes,
            counts=self._counts(operator, load),
            waits=operator.waits,
            communicates=bool(
                operator.name in EXCHANGES
                or operator.forward_collectives
                or operator.backward_collectives
                or (operator.beside_gradients and not parted)
            ),
            moves=self._moves(operator, load, adapters, back=False),
            moves_back=self._moves(operator, load, adapters, back=True) + (() if parted else beside),
            rounds=rounds,
            rounds_back=rounds_back,
            gradient_in_place=operator.gradient_in_place,
            matrices=_matrices(operator, rows.shape[-1] if rows is not None else 0),
            parted=parted,
            beside=_beside(beside) if parted else None,
            ring=Ring(operator.parts, operator.own_part, part) if operator.parts > 1 else None,
            ring_back=Ring(operator.parts_back, operator.own_part_back, part_back) if operator.parts_back > 1 else None,
            home=operator.name == "tp_scatter",
        )

    def _counts(self, operator: Operator, load: LayerLoad | None) -> Transfer | None:
        if operator.counts is None or load is None:
            return None
        return self._network.counts(operator.counts, load.rows.shape[1], load.way)

    def _rounds(self, operator: Operator, *, back: bool) -> tuple[Round, ...]:
        """The kernels of one direction that run beside a transfer each, with those."""
        kernels = operator.backward if back else operator.forward
        beside = operator.backward_beside if back else operator.forward_beside
        return tuple(
            Round(self._costs.kernel(kernel, back=back), self._network.collective(collective, collective.bytes))
            for kernel, collective in zip(kernels, beside, strict=False)
        )

    def _kept(
        self, tensors: tuple[Saved, ...], adapters: dict[str, Adapter], per_row: Quantity, thin: tuple[Quantity, ...]
    ) -> Kept:
        """What is kept of *tensors*, and the *thin* products of adapters: not what only gradients of weights need of
        which none is trained.
        """
        kept = [
            tensor
            for tensor in tensors
            if tensor.needed_for == "input_gradient"
            or self._all_trained
            or any(weight in adapters for weight in tensor.weights)
        ]
        sizes, nodes = tuple(tensor.bytes for tensor in kept), tuple(tensor.nodes for tensor in kept)
        return Kept((*(size * per_row for size in sizes), *thin), sizes, nodes)

    def _moves(
        self, operator: Operator, load: LayerLoad | None, adapters: dict[str, Adapter], *, back: bool
    ) -> tuple[Transfer, ...]:
        """Transfers of one direction: dispatch sends rows to their experts, combine brings them home, and back."""
        found: list[Transfer | None] = []
        if operator.name in EXCHANGES and load is not None:
            sent = load.wire_rows * (operator.backward_payload_bytes if back else operator.payload_bytes)
            homeward = (operator.name == "combine") != back
            found.append(self._network.exchange(sent.T if homeward else sent, load.way))
        asked = operator.backward_collectives if back else operator.forward_collectives
        moved = tuple(transfer for transfer in found if transfer is not None)
        return (*moved, *self._collectives(asked, adapters, _per_row(operator, load)))

    def _collectives(
        self, asked: tuple[Collective, ...], adapters: dict[str, Adapter], per_row: Quantity = 1.0
    ) -> tuple[Transfer, ...]:
        """Those of *asked* that this job needs and that have anything to move."""
        found = [
            self._network.collective(collective, collective.bytes * per_row)
            for collective in asked
            if not collective.weights or self._all_trained or any(w in adapters for w in collective.weights)
        ]
        return tuple(transfer for transfer in found if transfer is not None)


def _per_row(operator: Operator, load: LayerLoad | None) -> Quantity:
    """What amounts of *operator* are multiplied by: the rows of each behaviour, where it runs over routed ones."""
    return load.total_rows.astype(np.float64) if load is not None and operator.rows == "routed" else 1.0


def _in_parts(kernels: tuple[Kernel, ...], parts: int) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """*kernels* before the first product, and one part of the others, if they run in several."""
    first = next((n for n, kernel in enumerate(kernels) if kernel.kind == "gemm"), len(kernels))
    if parts == 1 or first == len(kernels):
        return kernels, ()
    return kernels[:first], tuple(_one_part(kernel, parts) for kernel in kernels[first:])


def _one_part(kernel: Kernel, parts: int) -> Kernel:
    """A product over a part of the rows, for which it reads all of the weights, or a part of another kernel."""
    if kernel.kind != "gemm":
        return replace(kernel, flops=kernel.flops / parts, bytes=kernel.bytes / parts)
    m, n, k = kernel.shape
    weights = float(n * k * (1 if number_format(kernel.dtype) == "fp8" else 2))
    moved = (kernel.bytes - weights) / parts + weights
    return replace(kernel, flops=kernel.flops / parts, bytes=moved, shape=(ceil(m / parts), n, k))


def _beside(transfers: tuple[Transfer, ...]) -> Beside | None:
    return Beside(transfers[0] if len(transfers) > 1 else None, transfers[-1]) if transfers else None


def _matrices(operator: Operator, experts: int) -> tuple[float, ...]:
    """Bytes of each weight that the products of *operator* multiply with in bf16: (m, n, k), or one of each expert."""
    whole = [2.0 * kernel.shape[1] * kernel.shape[2] for kernel in operator.forward if kernel.kind == "gemm"]
    return (*whole, *(kernel.fixed_bytes * experts for kernel in operator.forward if kernel.kind == "grouped_gemm"))


def _kind(operator: Operator) -> str:
    """The kind of the kernel that moves or computes most."""

    def weight(kernel: Kernel) -> float:
        return max(kernel.flops / 200.0, kernel.bytes)

    kernels = operator.forward or operator.backward
    return max(kernels, key=weight).kind if kernels else "copy"
