"""What each layer costs at least, for a way to split layers: arithmetic, and the communication inside them.

Operators are priced as the lowering prices them. What is left out can only add time: the host, gathers of parameters,
transfers that compete. Routed experts are priced on every expert-parallel rank; between two exchanges all wait for the
slowest, so its time counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from simulator.model.architecture import Layer
from simulator.model.operator import Operator, Workload
from simulator.model.operators.layers import embedding_operators, layer_operators, loss_operators
from simulator.model.operators.multi_token_prediction import module_embedding, module_loss
from simulator.model.parameters import embedding_parameters, head_parameters, layer_parameters
from simulator.model.split import share_model
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.planner.exchange import Exchange, aligned
from simulator.planner.expert_rows import ExpertRows
from simulator.planner.places import Place, places
from simulator.program.costs import Costs
from simulator.program.expert_load import LayerLoad
from simulator.program.job import Job
from simulator.program.layer_code import EXCHANGES, Pricer, Round, Step
from simulator.program.network import Network, Transfer

Seconds = npt.NDArray[np.float64]
PARTS = ("compute_s", "exposed_tp_s", "exposed_cp_s", "exposed_all_to_all_s")
"""What the time of a layer is made of, named as the forecast names it."""
_OF_AXIS = {"tp": 1, "etp": 1, "cp": 2, "ep": 3}
_COMPUTE, _TENSOR, _CONTEXT, _EXCHANGE = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of one micro-batch by part and layer, [parts, layers], and the bytes that backward needs."""

    forward: Seconds
    backward: Seconds
    again: Seconds
    """Of the forward pass that backward recomputes, which ends before the last operator that keeps anything."""
    saved: Seconds
    """Bytes kept for backward on each expert-parallel rank, [layers, ranks]."""
    busy: Seconds
    """Seconds for which one direction's exchanges keep the ports of each level busy, [levels, layers]."""


@dataclass(frozen=True, slots=True)
class TokensPart:
    """What runs over a rank's own tokens."""

    passes: Passes
    recomputes_routed: tuple[bool, ...]
    """For each layer, whether an operator behind its routed ones keeps something: they are all recomputed then."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Seconds by part of the embedding and of the loss, each forward and backward; modules' own count with the loss."""

    embedding: tuple[Seconds, Seconds]
    loss: tuple[Seconds, Seconds]


class LayerPrices:
    """Prices the layers of *job*'s model for other splits on its cluster; remembers what it has priced."""

    def __init__(self, job: Job, experts: ExpertRows | None) -> None:
        self._job = job
        self._experts = experts
        self._costs = Costs(job.cluster.accelerator, job.workload.execution)
        self._sizes = [level.size for level in job.cluster.levels]
        self._places = places(job.architecture)
        self._place = {layer.index: number for number, place in enumerate(self._places) for layer in place.layers}
        self._number = {layer.index: number for number, layer in enumerate(job.architecture.moe_layers())}
        self.tokens_part = cache(self._tokens_part)
        self.routed_part = cache(self._routed_part)
        self.ends = cache(self._ends)
        self._shared = cache(lambda tp, etp: share_model(job.architecture, tp, etp))
        self._exchange = cache(self._lay_exchange)
        self._routed = cache(self._price_routed)

    def _tokens_part(self, tp: int, cp: int, sequences: int) -> TokensPart:
        """Everything that runs over a rank's own tokens."""
        workload, own = self._workload(tp, cp, 1, sequences), self._shared(tp, 1)
        pricer = self._pricer(workload, self._network(Mesh(tp=tp, cp=cp), tp * cp))
        known: dict[Place, tuple[Seconds, Seconds, Seconds, float, bool]] = {}
        found = []
        for place in self._places:
            make = place.make
            if make not in known:
                adapters = self._job.trained.adapters(place.parameters(own, tp))
                operators = place.operators(self._job.architecture, workload)
                steps = [(op, pricer.step(op, adapters, None) if op.rows == "tokens" else None) for op in operators]
                known[make] = _of_tokens(steps)
            found.append(known[make])
        forward, backward, again, saved, whole = zip(*found, strict=True)
        busy = np.zeros((len(self._sizes), len(found)))
        ahead, back, repeated = (np.stack(passes, axis=1) for passes in (forward, backward, again))
        return TokensPart(Passes(ahead, back, repeated, np.array(saved)[:, None], busy), whole)

    def _ends(self, tp: int, cp: int, sequences: int) -> Ends:
        workload, own = self._workload(tp, cp, 1, sequences), self._shared(tp, 1)
        pricer = self._pricer(workload, self._network(Mesh(tp=tp, cp=cp), tp * cp))
        adapters = self._job.trained.adapters([*embedding_parameters(own), *head_parameters(own)])

        def passes(operators: Iterable[Operator]) -> tuple[Seconds, Seconds]:
            return _of_tokens([(operator, pricer.step(operator, adapters, None)) for operator in operators])[:2]

        model, variant = self._job.architecture, self._job.loss
        behind = [*loss_operators(model, workload, variant)]
        for _ in range(model.mtp_layers):
            behind += module_embedding(model, workload, adds=False)
            behind += module_loss(model, workload, variant, adds=False)
        return Ends(passes(embedding_operators(model, workload)), passes(behind))

    def _routed_part(self, tp: int, cp: int, sequences: int, ep: int, etp: int) -> Passes:
        """Everything that runs over routed rows."""
        workload = self._workload(tp, cp, etp, sequences)
        count, whole = len(self._places), self.tokens_part(tp, cp, sequences).recomputes_routed
        forward, backward, again = (np.zeros((len(PARTS), count)) for _ in range(3))
        total = Passes(forward, backward, again, np.zeros((count, ep)), np.zeros((len(self._sizes), count)))
        alike: dict[tuple[Layer, bool], list[int]] = {}
        for layer in self._job.architecture.moe_layers():
            make = replace(layer, index=0, mixer=None, residual_blocks=0)
            alike.setdefault((make, whole[self._place[layer.index]]), []).append(layer.index)
        for (make, wholly), indices in alike.items():
            operators = self._routed_operators(make, workload, ep)
            passes = self._routed(operators, tuple(indices), workload.sent_tokens, ep, etp)
            at = [self._place[index] for index in indices]
            total.forward[:, at], total.backward[:, at] = passes.forward, passes.backward
            total.again[:, at] = passes.forward if wholly else passes.again
            total.saved[at], total.busy[:, at] = passes.saved, passes.busy
        return total

    def sent_tokens(self, tp: int, cp: int, sequences: int) -> int:
        """Tokens that a rank sends to experts."""
        return self._workload(tp, cp, 1, sequences).sent_tokens

    def _routed_operators(self, make: Layer, workload: Workload, ep: int) -> tuple[Operator, ...]:
        operators = layer_operators(self._job.architecture, make, workload)
        return tuple(op for op in operators if op.rows == "routed" and (ep > 1 or not op.expert_parallel_only))

    def _price_routed(
        self, operators: tuple[Operator, ...], indices: tuple[int, ...], tokens: int, ep: int, etp: int
    ) -> Passes:
        """Passes of the layers *indices*, which share *operators*, when every rank sends *tokens* tokens."""
        own = self._shared(1, etp)
        first = next(layer for layer in own.moe_layers() if layer.index == indices[0])
        adapters = self._job.trained.adapters(layer_parameters(own, first))
        assert self._experts is not None
        rows = self._experts.rows(ep, tokens)[[self._number[index] for index in indices]]
        network, exchange = self._network(Mesh(dp_shard=etp, etp=etp), etp), self._exchange(ep, etp)
        pricer = self._pricer(self._workload(1, 1, etp, 1), network)
        stretch = RoutedStretch(len(indices), ep, len(self._sizes))
        gathered = 1
        for operator in operators:
            load = LayerLoad((rows * gathered).reshape(len(indices) * ep, -1), np.zeros((1, 1)))
            bare = replace(operator, forward_collectives=(), backward_collectives=())
            # A gather or scatter of rows takes the fullest rank at least as long as one of the mean rank's.
            mean = float(rows.mean(axis=(0, 1)).sum()) * gathered
            moves, moves_back = (
                sum(_seconds(network.collective(asked, asked.bytes * mean)) for asked in collectives)
                for collectives in (operator.forward_collectives, operator.backward_collectives)
            )
            stretch.operator(pricer.step(bare, adapters, load), moves, moves_back)
            if operator.name in EXCHANGES and ep > 1:
                least = min(operator.payload_bytes, operator.backward_payload_bytes)
                stretch.exchange(exchange.busy_s(rows.sum(axis=2), least))
            for asked in operator.forward_collectives:
                if asked.axis == "etp":
                    gathered = etp if asked.operation == "all_gather" else 1
        return stretch.passes()

    def _lay_exchange(self, ep: int, etp: int) -> Exchange:
        return Exchange(self._job.cluster, Mesh(dp_shard=ep * etp, ep=ep, etp=etp))

    def _workload(self, tp: int, cp: int, etp: int, sequences: int) -> Workload:
        """The workload of a split; weights in fp8 are taken to be cast already, which is so with ZeRO-1 alone."""
        base, float8 = self._job.workload, self._job.workload.float8
        lengths = (base.sequence_lengths[0],) * sequences
        cast = replace(float8, kept=True) if float8 else None
        return replace(base, sequence_lengths=lengths, tp=tp, cp=cp, etp=etp, float8=cast)

    def _network(self, mesh: Mesh, group: int) -> Network:
        """The network of one *group*; of none where neighbouring groups lie differently on the fabric."""
        mesh = mesh if aligned(group, self._sizes) else Mesh()
        folding = apart(mesh.groups(), mesh.stage_ranks)
        return Network(self._job.cluster, Placement(mesh, folding, self._sizes), mesh)

    def _pricer(self, workload: Workload, network: Network) -> Pricer:
        trained = self._job.trained.lora_rank is None
        return Pricer(self._costs, network, tokens=workload.tokens, all_trained=trained)


class RoutedStretch:
    """Adds up the routed operators of some layers, in forward order.

    Between two exchanges every rank of the group waits for the slowest. Before the first and after the last, where
    ranks go on from layer to layer without waiting, the mean rank is what all of them take at least.
    """

    def __init__(self, layers: int, ranks: int, levels: int) -> None:
        self._shape = layers, ranks
        self._busy = np.zeros((levels, layers))
        self._saved = np.zeros(self._shape)
        self._work = [np.zeros((2, *self._shape))]
        self._moved = np.zeros((2, len(PARTS), layers))
        self._again: tuple[int, Seconds, Seconds] | None = None

    def operator(self, step: Step, moves_s: float, moves_back_s: float) -> None:
        """Add one operator; it keeps tensors for backward as *step* says."""
        if step.kept:
            # Recomputation ends before the last operator that keeps anything.
            self._again = len(self._work), self._work[-1][0].copy(), self._moved[0].copy()
        for direction, priced in enumerate((step.forward, step.backward)):
            self._work[-1][direction] += np.broadcast_to(priced.duration_ns / 1e9, self._flat).reshape(self._shape)
        self._moved[0, _TENSOR] += moves_s
        self._moved[1, _TENSOR] += moves_back_s
        for size in step.saved:
            self._saved += np.broadcast_to(size, self._flat).reshape(self._shape)

    def exchange(self, busy_s: Seconds) -> None:
        """An exchange that keeps each level's ports busy, and as long on the way back."""
        self._busy += busy_s
        self._moved[:, _EXCHANGE] += busy_s.max(axis=0)
        self._work.append(np.zeros((2, *self._shape)))

    def passes(self) -> Passes:
        """All of it."""
        forward, backward = self._moved.copy()
        forward[_COMPUTE] = self._waited([work[0] for work in self._work])
        backward[_COMPUTE] = self._waited([work[1] for work in self._work])
        again = np.zeros_like(forward)
        if self._again is not None:
            stretches, work, moved = self._again
            again += moved
            again[_COMPUTE] = self._waited([*(w[0] for w in self._work[: stretches - 1]), work])
        return Passes(forward, backward, again, self._saved, self._busy)

    @property
    def _flat(self) -> int:
        return self._shape[0] * self._shape[1]

    def _waited(self, work: list[Seconds]) -> Seconds:
        inner = sum((stretch.max(axis=1) for stretch in work[1:-1]), np.zeros(self._shape[0]))
        outer = [work[0], work[-1]] if len(work) > 1 else work
        return np.asarray(inner + sum(stretch.mean(axis=1) for stretch in outer))


def _of_tokens(steps: list[tuple[Operator, Step | None]]) -> tuple[Seconds, Seconds, Seconds, float, bool]:
    """Forward, backward, recomputed seconds by part; bytes kept; whether routed operators are all recomputed.

    Routed operators, of which there is no step here, are left out.
    """
    keepers = [number for number, (_, step) in enumerate(steps) if step is not None and step.kept]
    last, routed = max(keepers, default=0), [number for number, (_, step) in enumerate(steps) if step is None]
    forward, backward, again = (np.zeros(len(PARTS)) for _ in range(3))
    saved = 0.0
    for number, (_, step) in enumerate(steps):
        if step is None:
            continue
        ahead = _parts(step.forward.duration_ns, step.moves) + _in_rounds(step.rounds)
        forward += ahead
        again += ahead if number < last else 0.0
        backward += _parts(step.backward.duration_ns, step.moves_back) + _in_rounds(step.rounds_back)
        saved += float(sum(np.max(size) for size in step.saved))
    return forward, backward, again, saved, max(routed, default=-1) < last


def _parts(compute_ns: int | npt.NDArray[np.int64], moves: Iterable[Transfer]) -> Seconds:
    parts = np.zeros(len(PARTS))
    parts[_COMPUTE] = float(np.max(compute_ns)) / 1e9
    for move in moves:
        parts[_OF_AXIS[move.collective.communicator]] += _seconds(move)
    return parts


def _in_rounds(rounds: Iterable[Round]) -> Seconds:
    """Kernels, and what the transfers beside them take longer."""
    parts = np.zeros(len(PARTS))
    for one in rounds:
        work_s = float(np.max(one.compute.duration_ns)) / 1e9
        parts[_COMPUTE] += work_s
        parts[_CONTEXT] += max(0.0, _seconds(one.move) - work_s)
    return parts


def _seconds(transfer: Transfer | None) -> float:
    return float(np.max(transfer.duration_ns)) / 1e9 if transfer is not None else 0.0
