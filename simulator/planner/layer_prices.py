"""What each layer costs at least, for a way to split layers: arithmetic, and the communication inside them.

Operators are priced as the lowering prices them. What is left out can only add time: the host, gathers of parameters,
transfers that compete. Routed experts are priced on every expert-parallel rank; between two exchanges all wait for the
slowest, so its time counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from simulator.engine.task import Quantity
from simulator.model.architecture import Layer, MixtureOfExperts
from simulator.model.operator import Operator, Workload
from simulator.model.operators.layers import embedding_operators, listed_operators, loss_operators
from simulator.model.operators.multi_token_prediction import module_embedding, module_loss
from simulator.model.parameters import embedding_parameters, head_parameters, layer_parameters
from simulator.model.recompute import NOTHING, WHOLE, LayerPlan, Recompute, Stack, plan_layer
from simulator.model.split import share_model
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.parallel.sharding import Adapter
from simulator.planner.exchange import Exchange, aligned
from simulator.planner.expert_rows import ExpertRows
from simulator.planner.passes import COMPUTE, CONTEXT, PARTS, Passes
from simulator.planner.places import Place, places
from simulator.planner.routed_stretch import RoutedStretch
from simulator.program.costs import Costs
from simulator.program.expert_load import LayerLoad
from simulator.program.job import Job
from simulator.program.network import Network, Transfer
from simulator.program.step import EXCHANGES, Pricer, Round, Step

Seconds = npt.NDArray[np.float64]
_OF_AXIS = {"tp": 1, "etp": 1, "cp": 2, "ep": 3}
_RECOMPUTE = (NOTHING, WHOLE)


@dataclass(frozen=True, slots=True)
class TokensPart:
    """What runs over a rank's own tokens."""

    passes: Passes
    recomputes_routed: tuple[bool, ...]
    """For each layer, whether an operator behind its routed ones keeps something, so that running again does not stop
    among them."""


@dataclass(frozen=True, slots=True)
class _Routed:
    """A routed operator: whether what runs again passes it, runs it, or finds its result kept for that alone."""

    operator: Operator
    passed: bool
    runs: bool
    loose: bool


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
        self._tokens_part = cache(self._lay_tokens_part)
        self._routed_part = cache(self._lay_routed_part)
        self.ends = cache(self._ends)
        self._shared = cache(lambda tp, etp: share_model(job.architecture, tp, etp))
        self._exchange = cache(self._lay_exchange)
        self._routed = cache(self._price_routed)
        self._routed_plan = cache(self._plan_routed)

    def tokens(self, edges: npt.NDArray[np.int64], tp: int, cp: int, sequences: int, recompute: int) -> Passes:
        """What runs over a rank's own tokens, for stages between *edges*; *recompute* counts as in a split."""

        def passes(what: Recompute) -> Passes:
            return self._tokens_part(tp, cp, sequences, what).passes

        return self._by_layer(edges, passes, recompute)

    def routed(
        self, edges: npt.NDArray[np.int64], tp: int, cp: int, sequences: int, ep: int, etp: int, recompute: int
    ) -> Passes:
        """What runs over routed rows, likewise."""

        def passes(what: Recompute) -> Passes:
            return self._routed_part(tp, cp, sequences, ep, etp, what)

        return self._by_layer(edges, passes, recompute)

    def _by_layer(self, edges: npt.NDArray[np.int64], passes: Callable[[Recompute], Passes], recompute: int) -> Passes:
        """Passes of all layers, each as its place in its stage has it recomputed."""
        what = (*_RECOMPUTE, self._job.recompute)[recompute]
        positions = [position for layers in np.diff(edges) for position in range(layers)]
        chosen = np.array([what.of_layer(position) != NOTHING for position in positions])
        if chosen.all() or not chosen.any():
            return passes(what.of_layer(0))
        return passes(WHOLE).where(chosen, passes(NOTHING))

    def _lay_tokens_part(self, tp: int, cp: int, sequences: int, recompute: Recompute) -> TokensPart:
        workload, own = self._workload(tp, cp, 1, sequences), self._shared(tp, 1)
        pricer = self._pricer(workload, self._network(Mesh(tp=tp, cp=cp), tp * cp))
        known: dict[Place, tuple[Seconds, Seconds, Seconds, float, float, bool]] = {}
        found = []
        for place in self._places:
            make = place.make
            if make not in known:
                adapters = self._job.trained.adapters(place.parameters(own, tp))
                plan = self._plan(place.parts(self._job.architecture, workload), recompute, exchanges=True)
                known[make] = self._price_tokens(plan, pricer, adapters)
            found.append(known[make])
        ahead, back, repeated = (np.stack([one[n] for one in found], axis=1) for n in range(3))
        inputs = float(workload.own_tokens * self._job.architecture.hidden * workload.activation_bytes)
        kept = np.array([place.streams * inputs for place in self._places])
        keeps = recompute == WHOLE or recompute.keep is not None
        saved = np.array([one[3] for one in found]) + (kept if keeps else 0.0)
        restored, busy = np.array([one[4] for one in found]), np.zeros((len(self._sizes), len(found)))
        passes = Passes(ahead, back, repeated, saved[:, None], restored[:, None], busy)
        return TokensPart(passes, tuple(one[5] for one in found))

    def _price_tokens(
        self, plan: LayerPlan, pricer: Pricer, adapters: dict[str, Adapter]
    ) -> tuple[Seconds, Seconds, Seconds, float, float, bool]:
        steps = [
            pricer.step(operator, adapters, None, again=plan.runs_again(number)) if operator.rows == "tokens" else None
            for number, operator in enumerate(plan.operators)
        ]
        copies = [stretch.restore for stretch in plan.stretches]
        priced = [pricer.step(copy, adapters, None) if copy and copy.rows == "tokens" else None for copy in copies]
        return _of_tokens(plan, steps, priced)

    def _plan(self, parts: Iterable[Iterable[Operator]], recompute: Recompute, *, exchanges: bool) -> LayerPlan:
        """The plan of a layer, whose checkpoint stops early: one that runs on takes longer."""
        compiled = self._job.workload.execution == "compiled"
        return plan_layer(parts, recompute, Stack(stops_early=True, compiled=compiled, exchanges=exchanges))

    def _ends(self, tp: int, cp: int, sequences: int) -> Ends:
        workload, own = self._workload(tp, cp, 1, sequences), self._shared(tp, 1)
        pricer = self._pricer(workload, self._network(Mesh(tp=tp, cp=cp), tp * cp))
        adapters = self._job.trained.adapters([*embedding_parameters(own), *head_parameters(own)])

        def passes(operators: tuple[Operator, ...]) -> tuple[Seconds, Seconds]:
            return self._price_tokens(LayerPlan(operators), pricer, adapters)[:2]

        model, variant = self._job.architecture, self._job.loss
        behind = [*loss_operators(model, workload, variant)]
        for _ in range(model.mtp_layers):
            behind += module_embedding(model, workload, adds=False)
            behind += module_loss(model, workload, variant, adds=False)
        return Ends(passes(embedding_operators(model, workload)), passes(tuple(behind)))

    def _lay_routed_part(self, tp: int, cp: int, sequences: int, ep: int, etp: int, recompute: Recompute) -> Passes:
        workload = self._workload(tp, cp, etp, sequences)
        layers = len(self._places)
        whole = self._tokens_part(tp, cp, sequences, recompute).recomputes_routed
        forward, backward, again = (np.zeros((len(PARTS), layers)) for _ in range(3))
        saved, restored, busy = np.zeros((layers, ep)), np.zeros((layers, ep)), np.zeros((len(self._sizes), layers))
        alike: dict[tuple[Layer, bool], list[int]] = {}
        for layer in self._job.architecture.moe_layers():
            make = replace(layer, index=0, mixer=None, residual_blocks=0)
            alike.setdefault((make, whole[self._place[layer.index]]), []).append(layer.index)
        for (make, wholly), indices in alike.items():
            routed, copies, early, keeps_input = self._routed_plan(make, tp, cp, sequences, etp, recompute, ep > 1)
            stops = early and not wholly
            passes = self._routed(routed, copies, tuple(indices), workload.sent_tokens, ep, etp, stops)
            at = [self._place[index] for index in indices]
            forward[:, at], backward[:, at], again[:, at] = passes.forward, passes.backward, passes.again
            saved[at], busy[:, at] = passes.saved, passes.busy
            restored[at] = passes.restored if keeps_input else 0.0
        return Passes(forward, backward, again, saved, restored, busy)

    def _plan_routed(
        self, make: Layer, tp: int, cp: int, sequences: int, etp: int, recompute: Recompute, exchanges: bool
    ) -> tuple[tuple[_Routed, ...], tuple[Operator, ...], bool, bool]:
        """Routed operators of a layer like *make*, copies of their results, whether running again stops early and
        whether the layer's input is kept.
        """
        listed = listed_operators(self._job.architecture, make, self._workload(tp, cp, etp, sequences))
        present = [op for op in listed if exchanges or not op.expert_parallel_only]
        plan = self._plan([present], recompute, exchanges=exchanges)
        routed = tuple(
            _Routed(op, plan.runs_again(n), _reruns(plan, n), _is_loose(plan, n))
            for n, op in enumerate(plan.operators)
            if op.rows == "routed"
        )
        copies = tuple(s.restore for s in plan.stretches if s.restore and s.restore.rows == "routed")
        return routed, copies, plan.stops_early, plan.keeps_input

    def sent_tokens(self, tp: int, cp: int, sequences: int) -> int:
        """Tokens that a rank sends to experts."""
        return self._workload(tp, cp, 1, sequences).sent_tokens

    def _price_routed(
        self,
        routed: tuple[_Routed, ...],
        copies: tuple[Operator, ...],
        indices: tuple[int, ...],
        tokens: int,
        ep: int,
        etp: int,
        stops: bool,
    ) -> Passes:
        """Passes of the layers *indices*, which share *routed* operators, when every rank sends *tokens* tokens.

        *stops*: running again ends before the last of them that keeps anything.
        """
        own = self._shared(1, etp)
        first = next(layer for layer in own.moe_layers() if layer.index == indices[0])
        adapters = self._job.trained.adapters(layer_parameters(own, first))
        assert self._experts is not None
        outcome, numbers = self._experts.outcome(ep, tokens), [self._number[index] for index in indices]
        rows = outcome.rows[0][numbers]
        picked = None if outcome.destinations is None else outcome.destinations[numbers]
        network = self._network(Mesh(dp_shard=etp, etp=etp), etp)
        assert isinstance(first.feed_forward, MixtureOfExperts)
        busy_s = self._exchange(ep, etp).busy_s(rows, self._job.choice(first.feed_forward), picked)
        pricer = self._pricer(self._workload(1, 1, etp, 1), network)
        stretch = RoutedStretch(len(indices), ep, len(self._sizes))
        keepers = [n for n, one in enumerate(routed) if one.operator.saved or one.operator.restored]
        last = max(keepers, default=0) if stops else len(routed)
        gathered = 1
        for number, one in enumerate(routed):
            operator, again = one.operator, one.runs and number < last
            load = LayerLoad((rows * gathered).reshape(len(indices) * ep, -1), np.zeros((1, 1)), np.zeros((1, 1)), 0.0)
            bare = replace(operator, forward_collectives=(), backward_collectives=())
            # A gather or scatter of rows takes the fullest rank at least as long as one of the mean rank's.
            mean = float(rows.mean(axis=(0, 1)).sum()) * gathered
            moves, moves_back = (
                sum(_seconds(network.collective(asked, asked.bytes * mean)) for asked in collectives)
                for collectives in (operator.forward_collectives, operator.backward_collectives)
            )
            step = pricer.step(bare, adapters, load, again=one.passed)
            stretch.operator(step, moves, moves_back, again=again)
            if one.loose and operator.name != "combine":
                stretch.result(step)
            if operator.name in EXCHANGES and ep > 1:
                least = min(operator.payload_bytes, operator.backward_payload_bytes)
                hidden = self._job.weaves or self._job.exchange_parts > 1
                stretch.exchange(busy_s * least, again=again, hidden=hidden)
            for asked in operator.forward_collectives:
                if asked.axis == "etp":
                    gathered = etp if asked.operation == "all_gather" else 1
        for copy in copies:
            load = LayerLoad(rows.reshape(len(indices) * ep, -1), np.zeros((1, 1)), np.zeros((1, 1)), 0.0)
            stretch.copy(pricer.step(copy, adapters, load))
        return stretch.passes()

    def _lay_exchange(self, ep: int, etp: int) -> Exchange:
        return Exchange(self._job.cluster, Mesh(dp_shard=ep * etp, ep=ep, etp=etp), self._job.exchange)

    def _workload(self, tp: int, cp: int, etp: int, sequences: int) -> Workload:
        """The workload of a split, of as many *sequences* like the job's own one.

        Weights in fp8 are taken to be cast already, which is so with ZeRO-1 alone.
        """
        base, float8 = self._job.workload, self._job.workload.float8
        lengths = base.sequence_lengths * sequences
        cast = replace(float8, kept=True, originals=frozenset()) if float8 else None
        return replace(base, sequence_lengths=lengths, tp=tp, cp=cp, etp=etp, float8=cast)

    def _network(self, mesh: Mesh, group: int) -> Network:
        """The network of one *group*; of none where neighbouring groups lie differently on the fabric."""
        mesh = mesh if aligned(group, self._sizes) else Mesh()
        folding = apart(mesh.groups(), mesh.stage_ranks)
        return Network(self._job.cluster, Placement(mesh, folding, self._sizes), mesh)

    def _pricer(self, workload: Workload, network: Network) -> Pricer:
        trained = self._job.trained.lora_rank is None
        return Pricer(self._costs, network, tokens=workload.tokens, all_trained=trained)


def _of_tokens(
    plan: LayerPlan, steps: list[Step | None], copies: list[Step | None]
) -> tuple[Seconds, Seconds, Seconds, float, float, bool]:
    """Forward, backward, recomputed seconds by part; bytes kept and restored; whether no stop is among routed ones.

    Routed operators, of which there is no step here, are left out, and so is what they restore.
    """
    keepers = [n for n, step in enumerate(steps) if step is not None and (step.saved.sizes or step.restored.sizes)]
    last, routed = max(keepers, default=0), [number for number, step in enumerate(steps) if step is None]
    forward, backward, again = (np.zeros(len(PARTS)) for _ in range(3))
    saved = restored = 0.0
    for number, step in enumerate(steps):
        if step is None:
            continue
        ahead = _parts(step.forward.duration_ns, step.moves) + _in_rounds(step.rounds)
        forward += ahead
        again += ahead if _reruns(plan, number) and (number < last or not plan.stops_early) else 0.0
        backward += _parts(step.backward.duration_ns, step.moves_back) + _in_rounds(step.rounds_back)
        saved += _total(step.saved.tensors) + (_total([step.output_bytes]) if _is_loose(plan, number) else 0.0)
        restored += _total(step.restored.tensors)
    for copy in copies:
        again += _parts(copy.forward.duration_ns, ()) if copy is not None else 0.0
    whole = not plan.stops_early or max(routed, default=-1) < last
    return forward, backward, again, saved, restored if plan.keeps_input else 0.0, whole


def _reruns(plan: LayerPlan, number: int) -> bool:
    return any(number in s.positions and number not in s.results for s in plan.stretches)


def _is_loose(plan: LayerPlan, number: int) -> bool:
    return any(number in stretch.loose for stretch in plan.stretches)


def _total(sizes: Iterable[Quantity]) -> float:
    return float(sum(np.max(size) for size in sizes))


def _parts(compute_ns: int | npt.NDArray[np.int64], moves: Iterable[Transfer]) -> Seconds:
    parts = np.zeros(len(PARTS))
    parts[COMPUTE] = float(np.max(compute_ns)) / 1e9
    for move in moves:
        parts[_OF_AXIS[move.collective.communicator]] += _seconds(move)
    return parts


def _in_rounds(rounds: Iterable[Round]) -> Seconds:
    """Kernels, and what the transfers beside them take longer."""
    parts = np.zeros(len(PARTS))
    for one in rounds:
        work_s = float(np.max(one.compute.duration_ns)) / 1e9
        parts[COMPUTE] += work_s
        parts[CONTEXT] += max(0.0, _seconds(one.move) - work_s)
    return parts


def _seconds(transfer: Transfer | None) -> float:
    return float(np.max(transfer.duration_ns)) / 1e9 if transfer is not None else 0.0
