"""What runs over a rank's own tokens costs at least, in each layer and at the ends of the model, for a way to split.

What is left out can only add time: the host, gathers of parameters, transfers that compete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from simulator.engine.task import Quantity
from simulator.model.operator import Operator, Workload
from simulator.model.operators.layers import embedding_operators, loss_operators
from simulator.model.operators.multi_token_prediction import module_embedding, module_loss
from simulator.model.parameters import embedding_parameters, head_parameters
from simulator.model.recompute import WHOLE, LayerPlan, Recompute
from simulator.parallel.mesh import Mesh
from simulator.parallel.sharding import Adapter
from simulator.planner.passes import COMPUTE, HOST, PARTS, Passes
from simulator.planner.places import places
from simulator.planner.pricing import Pricing, Steps, is_loose, reruns
from simulator.program.costs import Priced
from simulator.program.network import Transfer
from simulator.program.step import Ring, Round, Step

Seconds = npt.NDArray[np.float64]
_OF_AXIS = {"tp": 1, "etp": 1, "cp": 2, "ep": 3}


@dataclass(frozen=True, slots=True)
class TokensPart:
    """What runs over a rank's own tokens."""

    passes: Passes
    recomputes_routed: tuple[bool, ...]
    """For each layer, whether an operator behind its routed ones keeps something, so that running again does not stop
    among them."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Seconds by part of the embedding and of the loss, each forward and backward; modules' own count with the loss."""

    embedding: tuple[Seconds, Seconds]
    loss: tuple[Seconds, Seconds]


class TokenPrices:
    """Prices for splits; remembers what it has priced."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        self._places = places(pricing.job.architecture)
        makes = [place.make for place in self._places]
        known = list(dict.fromkeys(makes))
        self._make = [known.index(make) for make in makes]
        self._firsts = [self._places[makes.index(make)] for make in known]
        self.part = cache(self._part)
        self.ends = cache(self._ends)
        self._lane = cache(self._lay_lane)

    def passes(self, edges: npt.NDArray[np.int64], tp: int, cp: int, sequences: int, recompute: int) -> Passes:
        """Of all layers, for stages between *edges*; *recompute* counts as in a split."""
        return self._pricing.by_layer(edges, lambda what: self.part(tp, cp, sequences, what).passes, recompute)

    def _lay_lane(self, tp: int, cp: int, sequences: int) -> tuple[Workload, Steps]:
        workload = self._pricing.workload(tp, cp, 1, sequences)
        network = self._pricing.network(Mesh(tp=tp, cp=cp), tp * cp)
        return workload, Steps(self._pricing.pricer(workload, network))

    def _part(self, tp: int, cp: int, sequences: int, recompute: Recompute) -> TokensPart:
        job, own = self._pricing.job, self._pricing.own(tp, 1)
        workload, steps = self._pricing.workload(tp, cp, 1, sequences, recompute), self._lane(tp, cp, sequences)[1]
        found = []
        for place in self._firsts:
            adapters, parts = job.trained.adapters(place.parameters(own, tp)), place.parts(job.architecture, workload)
            plan = self._pricing.plan(parts, recompute, exchanges=True)
            found.append(_price(plan, steps, adapters, self._pricing.launch_s))
        found = [found[make] for make in self._make]
        ahead, back, repeated = (np.stack([one[n] for one in found], axis=1) for n in range(3))
        inputs = float(workload.own_tokens * job.architecture.hidden * workload.activation_bytes)
        kept = np.array([place.streams * inputs for place in self._places])
        keeps = recompute == WHOLE or recompute.keep is not None
        saved = np.array([one[3] for one in found]) + (kept if keeps else 0.0)
        restored = np.array([one[4] for one in found])
        none = np.zeros((3, len(found)))
        passes = Passes(ahead, back, repeated, saved[:, None], restored[:, None], none, none, none[:2], none, none[0])
        return TokensPart(passes, tuple(one[5] for one in found))

    def _ends(self, tp: int, cp: int, sequences: int) -> Ends:
        job, own = self._pricing.job, self._pricing.own(tp, 1)
        workload, steps = self._lane(tp, cp, sequences)
        adapters = job.trained.adapters([*embedding_parameters(own), *head_parameters(own)])

        def passes(operators: tuple[Operator, ...]) -> tuple[Seconds, Seconds]:
            return _price(LayerPlan(operators), steps, adapters, self._pricing.launch_s)[:2]

        model, variant = job.architecture, job.loss
        behind = [*loss_operators(model, workload, variant)]
        for _ in range(model.mtp_layers):
            behind += module_embedding(model, workload, adds=False)
            behind += module_loss(model, workload, variant, adds=False)
        return Ends(passes(embedding_operators(model, workload)), passes(tuple(behind)))


def _price(
    plan: LayerPlan, steps: Steps, adapters: dict[str, Adapter], launch_s: float
) -> tuple[Seconds, Seconds, Seconds, float, float, bool]:
    priced = [
        steps.of(operator, adapters, again=plan.runs_again(number)) if operator.rows == "tokens" else None
        for number, operator in enumerate(plan.operators)
    ]
    restores = [stretch.restore for stretch in plan.stretches]
    copies = [steps.of(copy, adapters) if copy and copy.rows == "tokens" else None for copy in restores]
    return _summed(plan, priced, copies, launch_s)


def _summed(
    plan: LayerPlan, steps: list[Step | None], copies: list[Step | None], launch_s: float
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
        ahead = _one_way(step.forward, step.moves, step.ring) + _in_rounds(step.rounds)
        ahead[HOST] = step.forward.launches * launch_s
        forward += ahead
        again += ahead if reruns(plan, number) and (number < last or not plan.stops_early) else 0.0
        back = _with_gradients(step) if step.beside else _one_way(step.backward, step.moves_back, step.ring_back)
        back[HOST] = step.backward.launches * launch_s
        backward += back + _in_rounds(step.rounds_back)
        saved += _total(step.saved.tensors) + (_total([step.output_bytes]) if is_loose(plan, number) else 0.0)
        restored += _total(step.restored.tensors)
    for copy in copies:
        again += _parts(copy.forward.duration_ns, ()) if copy is not None else 0.0
    whole = not plan.stops_early or max(routed, default=-1) < last
    return forward, backward, again, saved, restored if plan.keeps_input else 0.0, whole


def _total(sizes: Iterable[Quantity]) -> float:
    return float(sum(np.max(size) for size in sizes))


def _parts(compute_ns: int | npt.NDArray[np.int64], moves: Iterable[Transfer]) -> Seconds:
    parts = np.zeros(len(PARTS))
    parts[COMPUTE] = float(np.max(compute_ns)) / 1e9
    for move in moves:
        parts[_OF_AXIS[move.collective.communicator]] += transfer_s(move)
    return parts


def _one_way(priced: Priced, moves: Iterable[Transfer], ring: Ring | None) -> Seconds:
    """One direction; of one in parts the products, which may hide all transfers."""
    if ring is None:
        return _parts(priced.duration_ns, moves)
    return _parts(priced.duration_ns + ring.parts * ring.each.duration_ns, ())


def _in_rounds(rounds: Iterable[Round]) -> Seconds:
    """Kernels, and what the transfers beside them take longer."""
    parts = np.zeros(len(PARTS))
    for one in rounds:
        work_s = float(np.max(one.compute.duration_ns)) / 1e9
        parts[COMPUTE] += work_s
        if one.move is not None:
            parts[_OF_AXIS[one.move.collective.communicator]] += max(0.0, transfer_s(one.move) - work_s)
    return parts


def _with_gradients(step: Step) -> Seconds:
    """The same of a backward pass in two with a transfer beside each."""
    assert step.parted is not None
    assert step.beside is not None
    rounds = Round(step.parted.inputs, step.beside.inputs), Round(step.parted.weights, step.beside.weights)
    return _in_rounds(rounds)


def transfer_s(transfer: Transfer | None) -> float:
    """Seconds of a transfer; none between ranks that are one."""
    return float(np.max(transfer.duration_ns)) / 1e9 if transfer is not None else 0.0
