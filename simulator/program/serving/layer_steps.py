"""Layers of a deployment as steps of the device: kernels priced, rows of experts exchanged.

Ranks are alike but for their experts: what runs over routed rows takes what the rank with most of it takes, because
all wait for it when rows come home. What DeepEP's kernels do on their way is not done again: they find a token's ranks
and add its rows up; the low-latency ones leave rows by expert as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, floor, log2

import numpy as np

from simulator.model.architecture import Layer, MixtureOfExperts
from simulator.model.operator import Collective, Kernel, Operator
from simulator.model.serving.iteration import Iteration
from simulator.model.serving.layers import Part, Served, Setting, served_layer
from simulator.parallel.placement import Placement
from simulator.program.costs import Costs
from simulator.program.exchanges import Way, exchanges
from simulator.program.expert_load import wire_rows
from simulator.program.network import Network, Transfer
from simulator.program.serving.deployment import Deployment
from simulator.program.serving.expert_rows import ExpertRows, expert_rows, routed_s
from simulator.program.serving.small_all_reduce import small_all_reduce_s
from simulator.program.serving.split_keys import split_keys
from simulator.program.serving.timing import PartName, Step
from simulator.routing.table import FloatArray

PARTS: dict[Part, PartName] = {
    "attention": "attention_s",
    "products": "dense_s",
    "experts": "experts_s",
    "small": "small_kernels_s",
}
_OWN_ORDER = frozenset({"sort_by_expert", "sort_by_source"})
"""Operators that put rows in the order of their experts, and back."""
_OWN_ROWS = frozenset({"permute", "unpermute"})
"""Operators that make a token's rows, and their sum."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """One iteration on its way through layers that are alike."""

    tokens: float
    """That a rank brings to the experts in the mean."""
    prompt_tokens: int
    """Of its own, those of prompts."""
    way: Way
    way_name: str
    gap_s: float
    """What the device loses before a kernel."""
    load: ExpertRows | None
    """Of each of the layers; None where they have no experts."""
    part: MixtureOfExperts | None
    popularity: tuple[int, ...]
    """Numbers of the layers' popularity."""
    hottest: dict[int, float]
    """Rows of the rank that has most, by those numbers."""


class LayerSteps:
    """Prices layers of one deployment; remembers exchanges, which follow from tokens alone."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        mesh, cluster = deployment.mesh, deployment.cluster
        self._accelerator = cluster.accelerator
        placement = Placement(mesh, deployment.folding, [level.size for level in cluster.levels])
        self.network = Network(cluster, placement, mesh)
        self._costs = Costs(self._accelerator, "compiled")
        native = frozenset(self._accelerator.sheet.dense_flops_per_s)
        self._setting = Setting(mesh.tp, mesh.etp, deployment.exchanges, deployment.formats, native)
        self._numbers = {layer.index: at for at, layer in enumerate(deployment.architecture.moe_layers())}
        self._like = _first_alike(deployment.popularity)
        self._known: dict[tuple[float, str, int, bool, float], Step] = {}
        self._wires: dict[tuple[str, int], FloatArray] = {}

    def of_stage(self, stage: int, iteration: Iteration, *, graph: bool) -> list[list[Step]]:
        """Each of the layers of *stage*, in order; in a *graph* kernels follow each other more closely."""
        layers = self._deployment.layers_of(stage)
        alike: dict[Layer, list[Layer]] = {}
        for layer in layers:
            alike.setdefault(replace(layer, index=0), []).append(layer)
        found: dict[int, list[Step]] = {}
        for group in alike.values():
            for layer, steps in zip(group, self._alike(group, iteration, graph=graph), strict=True):
                found[layer.index] = steps
        return [found[layer.index] for layer in layers]

    def of_operators(self, operators: tuple[Operator, ...], part: PartName, gap_s: float) -> list[Step]:
        """Steps of *operators* without experts, all of which count as *part* but for collectives."""
        return [step for each in operators for step in self._plain(each, part, gap_s)]

    def gap_s(self, *, graph: bool) -> float:
        """What the device loses before a kernel."""
        return self._accelerator.graph_gap_s if graph else self._accelerator.kernel_gap_s

    def _alike(self, layers: list[Layer], iteration: Iteration, *, graph: bool) -> list[list[Step]]:
        """Steps of each of *layers*, which differ in their experts' popularity alone."""
        this = self._pass(layers, iteration, graph=graph)
        steps: list[list[Step]] = [[] for _ in layers]
        for served in served_layer(self._deployment.architecture, layers[0], iteration, self._setting):
            for own, more in zip(steps, self._steps(served, this, len(layers)), strict=True):
                own.extend(more)
        return steps

    def _pass(self, layers: list[Layer], iteration: Iteration, *, graph: bool) -> _Pass:
        deployment, part = self._deployment, layers[0].feed_forward
        name = deployment.prefill_exchange if iteration.prefill else deployment.decode_exchange
        way, gap_s, tokens = exchanges()[name], self.gap_s(graph=graph), (iteration.brought, iteration.prefill_tokens)
        if not isinstance(part, MixtureOfExperts) or deployment.popularity is None:
            return _Pass(*tokens, way, name, gap_s, None, None, (), {})
        numbers = tuple(self._numbers[layer.index] for layer in layers)
        of_group = iteration.brought * deployment.expert_ranks / deployment.mesh.tp
        load = expert_rows(deployment.popularity[list(numbers)], of_group, part.top_k)
        hottest = dict(zip(numbers, load.of_ranks.max(axis=1).tolist(), strict=True))
        return _Pass(*tokens, way, name, gap_s, load, part, numbers, hottest)

    def _steps(self, served: Served, this: _Pass, layers: int) -> list[list[Step]]:
        operator = self._left_of(served.operator, this.way)
        if operator is None:
            return [[] for _ in range(layers)]
        if operator.payload_bytes:
            return [list(self._exchanged(operator, this, number)) for number in this.popularity]
        if operator.rows == "routed" and this.load is not None:
            return self._routed(operator, PARTS[served.part], this, this.load)
        steps = list(self._plain(operator, PARTS[served.part], this.gap_s))
        return [self._faster(steps, operator, this)] * layers

    def _faster(self, steps: list[Step], operator: Operator, this: _Pass) -> list[Step]:
        """*steps* of *operator*, or where it is attention of prompts that takes less with keys split, those."""
        units = self._accelerator.sheet.sm_count
        if operator.name != "attention" or units is None:
            return steps
        split = split_keys(operator.forward[0], this.prompt_tokens, round(units.value))
        if split is None:
            return steps
        bounds = self.of_operators(tuple(replace(operator, forward=(one,)) for one in split), "attention_s", this.gap_s)
        return [min(steps[0], max(bounds, key=_seconds), key=_seconds)]

    def _left_of(self, operator: Operator, way: Way) -> Operator | None:
        """What of *operator* is not part of the exchange's own kernels."""
        if not self._deployment.exchanges or way.units is None:
            return operator
        if operator.name in _OWN_ROWS or (operator.name in _OWN_ORDER and way.one_sided):
            return None
        if operator.name != "route":
            return operator
        return replace(operator, forward=tuple(kernel for kernel in operator.forward if kernel.kind != "sort"))

    def _plain(self, operator: Operator, part: PartName, gap_s: float) -> Iterator[Step]:
        if operator.forward:
            priced = self._costs.forward(operator, (), 0, None)
            closer_s = priced.launches * (self._accelerator.kernel_gap_s - gap_s)
            seconds = max(0.0, float(priced.duration_ns) / 1e9 - closer_s)
            yield Step(part, seconds, priced.grade, priced.launches)
        yield from (step for asked in operator.forward_collectives if (step := self._collective(asked)))

    def _collective(self, asked: Collective) -> Step | None:
        """A collective among the ranks of tp: the library's, or the engine's own; None where there is nobody else."""
        mesh, cluster = self._deployment.mesh, self._deployment.cluster
        if asked.operation == "all_reduce" and cluster.scale_up_domain % mesh.tp == 0:
            seconds, known = small_all_reduce_s(cluster, mesh.tp, asked.bytes), cluster.node.scale_up.one_shot
            if seconds is not None and known is not None:
                return Step("tensor_parallel_s", seconds, known.grade, 1)
        transfer = self.network.collective(asked, asked.bytes)
        return None if transfer is None else Step("tensor_parallel_s", transfer.longest_s, transfer.grade, 1)

    def _routed(self, operator: Operator, part: PartName, this: _Pass, load: ExpertRows) -> list[list[Step]]:
        """Of the rank whose kernels take longest, for each layer."""
        if not self._deployment.slots:
            return [[Step(part, 0.0, "measured")] for _ in this.popularity]
        found: list[list[Step]] = [[] for _ in this.popularity]
        for kernel in operator.forward:
            seconds, grade = routed_s(self._accelerator, kernel, load, this.gap_s)
            sort: PartName = part if kernel.kind == "served_experts" else "small_kernels_s"
            for steps, longest in zip(found, seconds.max(axis=1).tolist(), strict=True):
                steps.append(Step(sort, longest, grade, kernel.launches))
        return found

    def _exchanged(self, operator: Operator, this: _Pass, number: int) -> Iterator[Step]:
        """The exchange of rows in the layer with popularity *number*, behind their cast and that of their counts."""
        if operator.forward and not this.way.one_sided:
            yield from self._cast(operator, this)
        if operator.counts is not None:
            told = self.network.counts(operator.counts, self._deployment.slots, this.way)
            if told is not None:
                yield Step("exchange_s", told.longest_s, told.grade, 1, waited_for=True)
        both = self._packing(operator, this, number)
        yield from both[:1]
        yield self._sent(operator, this, number)
        yield from both[1:]

    def _cast(self, operator: Operator, this: _Pass) -> Iterator[Step]:
        """Of the rank's tokens before their rows travel; one-sided exchanges cast on their way."""
        own = this.tokens / self._deployment.mesh.tp
        kernels = tuple(replace(each, bytes=each.bytes * own) for each in operator.forward)
        return self._plain(Operator("cast", kernels), "small_kernels_s", this.gap_s)

    def _packing(self, operator: Operator, this: _Pass, number: int) -> list[Step]:
        """Kernels of low-latency exchanges before rows travel and behind, where other kernels run between them.

        They copy rows to where ports send from, and from where ports put them; what an exchange takes alone has them.
        """
        if not (this.way.one_sided and self._deployment.two_batch_overlap) or this.part is None:
            return []
        own = this.tokens / self._deployment.mesh.tp * this.part.top_k
        received = this.hottest[number]
        rows = (own, received) if operator.name == "dispatch" else (received, own)
        kernels = tuple(Kernel("copy", 0.0, 2 * operator.payload_bytes * each) for each in rows)
        return [
            step for each in kernels for step in self._plain(Operator("pack", (each,)), "small_kernels_s", this.gap_s)
        ]

    def _sent(self, operator: Operator, this: _Pass, number: int) -> Step:
        """The exchange, priced at the powers of two around the rank's tokens: between them time is linear in bytes."""
        low, high = (
            self._of_tokens(operator, this, number, 2.0 ** round_(log2(this.tokens))) for round_ in (floor, ceil)
        )
        below = 2.0 ** floor(log2(this.tokens))
        seconds = low.seconds + (high.seconds - low.seconds) * (this.tokens - below) / below
        return replace(high, seconds=seconds)

    def _of_tokens(self, operator: Operator, this: _Pass, number: int, tokens: float) -> Step:
        home = operator.name == "combine"
        key = (tokens, this.way_name, self._like[number], home, operator.payload_bytes)
        if key not in self._known:
            wire = self._wire(this, self._like[number])
            sent = tokens * operator.payload_bytes * (wire.T if home else wire)
            self._known[key] = _step(self.network.exchange(sent, this.way))
        return self._known[key]

    def _wire(self, this: _Pass, number: int) -> FloatArray:
        """Rows from each expert-parallel rank to each, of one token that an attention-data-parallel rank brings."""
        key = (this.way_name, number)
        if key not in self._wires:
            deployment, part = self._deployment, this.part
            assert deployment.popularity is not None
            assert part is not None
            rows = deployment.popularity[number] * part.top_k * deployment.expert_ranks / deployment.mesh.tp
            choice, domain = deployment.choice(part), deployment.cluster.scale_up_domain
            self._wires[key] = wire_rows(rows, deployment.mesh, this.way_name, choice, domain)
        return self._wires[key]


def _seconds(step: Step) -> float:
    return step.seconds


def _step(transfer: Transfer | None) -> Step:
    if transfer is None:
        return Step("exchange_s", 0.0, "measured")
    taken = float(np.max(transfer.collective.compute_taken))
    return Step("exchange_s", transfer.longest_s, transfer.grade, 1, taken=taken)


def _first_alike(popularity: FloatArray | None) -> list[int]:
    """The first layer with the same popularity as each."""
    if popularity is None:
        return []
    first: dict[bytes, int] = {}
    return [first.setdefault(layer.tobytes(), number) for number, layer in enumerate(popularity)]
