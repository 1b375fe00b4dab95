"""What runs over routed rows in each layer, and how long exchanges of rows take at least, for a way to split them.

Routed experts are priced on every expert-parallel rank; between two exchanges all wait for the slowest, so its time
counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from simulator.model.architecture import Layer, MixtureOfExperts
from simulator.model.operator import Operator
from simulator.model.operators.layers import listed_operators
from simulator.model.parameters import layer_parameters
from simulator.model.recompute import Recompute
from simulator.parallel.mesh import Mesh
from simulator.planner.exchange import Exchange
from simulator.planner.expert_rows import EvenRows, ExpertRows
from simulator.planner.passes import PARTS, Passes
from simulator.planner.places import places
from simulator.planner.pricing import Pricing, is_loose, reruns
from simulator.planner.routed_stretch import RoutedStretch
from simulator.planner.splits import WAYS
from simulator.planner.token_prices import TokenPrices, transfer_s
from simulator.program.exchanges import Mix, exchanges, mixes_of
from simulator.program.expert_load import LayerLoad
from simulator.program.network import Network
from simulator.program.step import EXCHANGES, Step
from simulator.routing.coverage import Choice

Amounts = npt.NDArray[np.float64]
_TELLING: tuple[Literal["all_to_all"], Literal["all_gather"]] = ("all_to_all", "all_gather")
_STEPS_REMEMBERED = 64
"""Those of one kind of layer on one number of ranks, which all ways to recompute share."""


@dataclass(frozen=True, slots=True)
class _Routed:
    """A routed operator: whether what runs again passes it, runs it, or finds its result kept for that alone."""

    operator: Operator
    passed: bool
    runs: bool
    loose: bool


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of layers by their *indices*, on *ep* ranks that send *tokens* tokens each."""

    indices: tuple[int, ...]
    tokens: int
    ep: int
    etp: int


class RoutedPrices:
    """Prices for splits; remembers what it has priced. *experts*: None for a model that has none."""

    def __init__(self, pricing: Pricing, tokens: TokenPrices, experts: ExpertRows | EvenRows | None) -> None:
        self._pricing = pricing
        self._tokens = tokens
        self._experts = experts
        architecture = pricing.job.architecture
        self._places = places(architecture)
        self._place = {layer.index: number for number, place in enumerate(self._places) for layer in place.layers}
        self._number = {layer.index: number for number, layer in enumerate(architecture.moe_layers())}
        makes = [replace(layer, index=0, mixer=None, residual_blocks=0) for layer in architecture.moe_layers()]
        self._moe = list(dict.fromkeys(makes))
        self._makes = [(self._moe.index(make), index) for make, index in zip(makes, self._number, strict=True)]
        self.sent_tokens = cache(self._sent_tokens)
        self._part = cache(self._lay_part)
        self._priced = cache(self._price)
        self._plan = cache(self._lay_plan)
        self._network = cache(self._lay_network)
        self._rows = lru_cache(_STEPS_REMEMBERED)(self._look_up_rows)
        self._row_bytes = cache(self._widest_row)
        self._told = cache(self._lay_told)
        self._busy = cache(self._lay_busy)
        self._mixes = cache(self._lay_mixes)
        self._step = lru_cache(_STEPS_REMEMBERED)(self._price_step)

    def passes(
        self,
        edges: npt.NDArray[np.int64],
        tp: int,
        cp: int,
        sequences: int,
        ep: int,
        etp: int,
        recompute: int,
        *,
        looped: bool = False,
    ) -> Passes:
        """Of all layers, for stages between *edges*; *recompute* counts as in a split. *looped*: a library launches the
        products of experts one by one.
        """
        return self._pricing.by_layer(
            edges, lambda what: self._part(tp, cp, sequences, ep, etp, what, looped), recompute
        )

    def busy_s(self, tp: int, cp: int, sequences: int, ep: int, etp: int, way: int) -> Amounts:
        """Seconds a byte of a row that an exchange keeps the busiest port of each level busy, [levels, layers]."""
        return self._busy(self.sent_tokens(tp, cp, sequences), ep, etp, WAYS[way])

    def told_s(self, tp: int, cp: int, sequences: int, ep: int, etp: int, way: int) -> float:
        """Seconds in which ranks tell each other how many rows they will send one *way*, and nothing is computed."""
        return self._told(ep, etp, self.slots(tp, cp, sequences, ep), WAYS[way])

    def tells(self, way: int) -> bool:
        """Whether the host waits to hear how many rows come one *way*."""
        return not exchanges()[WAYS[way]].one_sided

    def _lay_told(self, ep: int, etp: int, slots: int, way: str) -> float:
        """Of the faster of the operations that stacks do so with."""
        network = self._pricing.network(Mesh(dp_shard=ep * etp, ep=ep, etp=etp), ep * etp)
        told = [network.counts(operation, slots, exchanges()[way]) for operation in _TELLING]
        return min((float(np.min(one.duration_ns)) / 1e9 for one in told if one is not None), default=0.0)

    def _sent_tokens(self, tp: int, cp: int, sequences: int) -> int:
        """Tokens that a rank sends to experts."""
        return self._pricing.workload(tp, cp, 1, sequences).sent_tokens

    def slots(self, tp: int, cp: int, sequences: int, ep: int) -> int:
        """Experts that a rank holds, copies counted; 0 without experts."""
        if self._experts is None:
            return 0
        return int(self._experts.outcome(ep, self.sent_tokens(tp, cp, sequences)).rows.shape[3])

    def buffer_bytes(self, tp: int, cp: int, sequences: int, ep: int, way: int) -> float:
        """What the exchange keeps on a rank of *ep* for rows sent one *way*; 0 without experts."""
        tokens, experts = self.sent_tokens(tp, cp, sequences), self.slots(tp, cp, sequences, ep) * ep
        return exchanges()[WAYS[way]].buffer_bytes(experts, tokens, self._row_bytes(tp, cp, sequences))

    def _widest_row(self, tp: int, cp: int, sequences: int) -> float:
        """Bytes of a row on its way home in the layer where it is widest; 0 without experts."""
        job, workload = self._pricing.job, self._pricing.workload(tp, cp, 1, sequences)
        makes = {replace(layer, index=0) for layer in job.architecture.moe_layers()}
        listed = (listed_operators(job.architecture, make, workload) for make in makes)
        return max((op.payload_bytes for operators in listed for op in operators if op.name == "combine"), default=0.0)

    def _lay_busy(self, tokens: int, ep: int, etp: int, way: str) -> Amounts:
        job = self._pricing.job
        busy = np.zeros((len(job.cluster.levels), len(self._places)))
        if self._experts is None:
            return busy
        exchange = Exchange(job.cluster, Mesh(dp_shard=ep * etp, ep=ep, etp=etp), way)
        alike: dict[MixtureOfExperts, list[int]] = {}
        for layer in job.architecture.moe_layers():
            assert isinstance(layer.feed_forward, MixtureOfExperts)
            alike.setdefault(layer.feed_forward, []).append(layer.index)
        for part, indices in alike.items():
            at, rows = [self._place[index] for index in indices], _Rows(tuple(indices), tokens, ep, etp)
            mixes = partial(self._mixes, replace(rows, etp=1), job.choice(part))
            busy[:, at] = exchange.busy_s(self._rows(rows), mixes)
        return busy

    def _lay_mixes(self, on: _Rows, choice: Choice, members: int) -> list[Mix]:
        """What tokens want of a group that has *members* ranks in each node."""
        assert self._experts is not None
        numbers, known = (
            [self._number[index] for index in on.indices],
            self._experts.outcome(on.ep, on.tokens).destinations,
        )
        return mixes_of(self._rows(on), choice, members, None if known is None else known[numbers])

    def _lay_part(
        self, tp: int, cp: int, sequences: int, ep: int, etp: int, recompute: Recompute, looped: bool
    ) -> Passes:
        layers, tokens = len(self._places), self.sent_tokens(tp, cp, sequences)
        whole = self._tokens.part(tp, cp, sequences, recompute).recomputes_routed
        forward, backward, again = (np.zeros((len(PARTS), layers)) for _ in range(3))
        saved, restored = np.zeros((layers, ep)), np.zeros((layers, ep))
        row_bytes, told, late = (np.zeros((3, layers)) for _ in range(3))
        waits, late_bytes = np.zeros((2, layers)), np.zeros(layers)
        alike: dict[tuple[int, bool], list[int]] = {}
        for make, index in self._makes:
            alike.setdefault((make, whole[self._place[index]]), []).append(index)
        for (make, wholly), indices in alike.items():
            routed, copies, early, keeps_input = self._plan(self._moe[make], tp, cp, sequences, etp, recompute, ep > 1)
            on, stops = _Rows(tuple(indices), tokens, ep, etp), early and not wholly
            passes = self._priced(routed, copies, on, stops, looped)
            at = [self._place[index] for index in indices]
            forward[:, at], backward[:, at], again[:, at] = passes.forward, passes.backward, passes.again
            saved[at], row_bytes[:, at], told[:, at] = passes.saved, passes.row_bytes, passes.told
            restored[at] = passes.restored if keeps_input else 0.0
            waits[:, at], late[:, at], late_bytes[at] = passes.waits, passes.late, passes.late_bytes
        return Passes(forward, backward, again, saved, restored, row_bytes, told, waits, late, late_bytes)

    def _lay_plan(
        self, make: Layer, tp: int, cp: int, sequences: int, etp: int, recompute: Recompute, exchanges: bool
    ) -> tuple[tuple[_Routed, ...], tuple[Operator, ...], bool, bool]:
        """Routed operators of a layer like *make*, copies of their results, whether running again stops early and
        whether the layer's input is kept.
        """
        workload = self._pricing.workload(tp, cp, etp, sequences, recompute)
        listed = listed_operators(self._pricing.job.architecture, make, workload)
        present = [op for op in listed if exchanges or not op.expert_parallel_only]
        plan = self._pricing.plan([present], recompute, exchanges=exchanges)
        routed = tuple(
            _Routed(op, plan.runs_again(n), reruns(plan, n), is_loose(plan, n))
            for n, op in enumerate(plan.operators)
            if op.rows == "routed"
        )
        copies = tuple(s.restore for s in plan.stretches if s.restore and s.restore.rows == "routed")
        return routed, copies, plan.stops_early, plan.keeps_input

    def _price(
        self, routed: tuple[_Routed, ...], copies: tuple[Operator, ...], on: _Rows, stops: bool, looped: bool
    ) -> Passes:
        """Passes of layers which share *routed* operators, *looped* as in `passes`.

        *stops*: running again ends before the last of them that keeps anything.
        """
        looped_launch_s = self._pricing.looped_launch_s if looped else 0.0
        stretch = RoutedStretch(len(on.indices), on.ep, self._pricing.launch_s, looped_launch_s)
        keepers = [n for n, one in enumerate(routed) if one.operator.saved or one.operator.restored]
        last = max(keepers, default=0) if stops else len(routed)
        gathered = 1
        for number, one in enumerate(routed):
            operator, again = one.operator, one.runs and number < last
            among = {asked.operation for asked in operator.forward_collectives if asked.axis == "etp"}
            gathered = on.etp if "all_gather" in among else gathered
            step = self._step(operator, on, gathered, one.passed)
            stretch.operator(step, *self._moves_s(operator, on, gathered), again=again)
            if one.loose and operator.name != "combine":
                stretch.result(step)
            if operator.name in EXCHANGES and on.ep > 1:
                row_bytes = min(operator.payload_bytes, operator.backward_payload_bytes)
                stretch.exchange(row_bytes, told=operator.counts is not None, again=again)
            gathered = 1 if "reduce_scatter" in among else gathered
        for copy in copies:
            stretch.copy(self._step(copy, on, 1, False))
        return stretch.passes()

    def _price_step(self, operator: Operator, on: _Rows, gathered: int, again: bool) -> Step:
        """*operator* without its transfers, over rows that *gathered* ranks brought together."""
        own = self._pricing.own(1, on.etp)
        first = next(layer for layer in own.moe_layers() if layer.index == on.indices[0])
        adapters = self._pricing.job.trained.adapters(layer_parameters(own, first))
        rows = self._rows(on) * gathered
        load = LayerLoad(rows.reshape(len(on.indices) * on.ep, -1), np.zeros((1, 1)), np.zeros((1, 1)), 0.0)
        bare = replace(operator, forward_collectives=(), backward_collectives=())
        # A pricer remembers the load of whatever it has priced: this one is let go at once.
        pricer = self._pricing.pricer(self._pricing.workload(1, 1, on.etp, 1), self._network(on.etp))
        return pricer.step(bare, adapters, load, again=again)

    def _moves_s(self, operator: Operator, on: _Rows, gathered: int) -> tuple[float, float]:
        """Seconds of what its ranks gather and scatter, forward and backward: of rows, the fullest rank takes at least
        as long as one of the mean rank's.
        """
        if not operator.forward_collectives and not operator.backward_collectives:
            return 0.0, 0.0
        network = self._network(on.etp)
        mean = float(self._rows(on).mean(axis=(0, 1)).sum()) * gathered
        forward, backward = (
            sum(transfer_s(network.collective(asked, asked.bytes * mean)) for asked in collectives)
            for collectives in (operator.forward_collectives, operator.backward_collectives)
        )
        return forward, backward

    def _look_up_rows(self, on: _Rows) -> npt.NDArray[np.int64]:
        """[layers, ranks, experts on the rank]."""
        assert self._experts is not None
        rows = self._experts.outcome(on.ep, on.tokens).rows[0]
        return np.asarray(rows[[self._number[index] for index in on.indices]])

    def _lay_network(self, etp: int) -> Network:
        """Of the ranks that split an expert."""
        return self._pricing.network(Mesh(dp_shard=etp, etp=etp), etp)
