"""The priced operators of one stage for one of the step's unlike micro-batches.

Where ranks have sequences of their own, what runs over tokens is priced for each different set of them and becomes
vectors over behaviours; what runs over routed rows follows the rows. Prices of what is alike in several micro-batches
or layers are made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from simulator.engine.task import Quantity
from simulator.model.architecture import Layer, MixtureOfExperts
from simulator.model.operator import Operator
from simulator.model.parameters import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_module_parameters,
)
from simulator.model.recompute import NOT_AWAY, Away, LayerPlan, Recompute
from simulator.parallel.sharding import Adapter
from simulator.program.activation_offload import ActivationOffload, sent_by
from simulator.program.costs import Costs
from simulator.program.cuda_graphs import Graphs
from simulator.program.emitter import Emitter
from simulator.program.expert_load import LayerLoad, layer_load
from simulator.program.image_code import ImageCode, Which, image_code, unlike
from simulator.program.job import Job
from simulator.program.keeping import idle
from simulator.program.layer_code import LayerCode, Rerun
from simulator.program.layout import Layout
from simulator.program.network import Network
from simulator.program.stage import ChunkCode, PredictionCode, StageCode
from simulator.program.stage_operators import StageOperators
from simulator.program.step import Pricer, Step

Make = tuple[Layer, Recompute]
"""A layer without its number, and what of it runs again."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerSteps:
    """A layer's priced operators, what of them runs again, and whether the layer's input is kept for that.

    Layers of one make without routed experts share theirs, and with them their code.
    """

    steps: list[Step]
    reruns: list[Rerun]
    keeps_input: bool
    away: Away
    """What of it a swap has in host memory."""

    def code(self, emitter: Emitter, offload: ActivationOffload | None) -> LayerCode:
        """The layer's code for one program."""
        sent = sent_by(offload, self.steps, self.away)
        region_ns = emitter.framework.region_ns
        return LayerCode(emitter, self.steps, self.reruns, keeps_input=self.keeps_input, sent=sent, region_ns=region_ns)


class TokenSteps:
    """What runs over the tokens of a stage whose ranks have the sequences of *job*'s only micro-batch, with prices of
    what is *like* it.
    """

    def __init__(
        self, job: Job, costs: Costs, network: Network, layout: Layout, number: int, like: TokenSteps | None = None
    ) -> None:
        self._job = job
        self._number = number
        (batch,) = job.micro_batches
        sets = batch.distinct or (job.workload.sequence_lengths,)
        jobs = [replace(job, workload=replace(job.workload, sequence_lengths=lengths)) for lengths in sets]
        trained = job.trained.lora_rank is None
        self.pricers: list[Pricer] = (
            [Pricer(costs, network, tokens=one.workload.tokens, all_trained=trained) for one in jobs]
            if like is None
            else like.pricers
        )
        self._all_operators = [StageOperators(one, layout, number) for one in jobs]
        places = [sets.index(lengths) for lengths in batch.lengths] or [0] * job.mesh.ep
        self._which: Which = np.array(places)[job.mesh.expert_rank()[job.folding.representative]]
        ends = [*embedding_parameters(job.own_architecture), *head_parameters(job.own_architecture)]
        self._adapters = job.trained.adapters(ends)
        self._known: dict[Make, tuple[list[LayerPlan], list[Step | None]]] = {}
        own = np.array([one.workload.own_tokens for one in jobs], np.float64)
        width = job.architecture.hidden * job.workload.activation_bytes
        self.input_bytes: Quantity = own[self._which] * width if len(jobs) > 1 else float(own[0]) * width

    @property
    def operators(self) -> StageOperators:
        """Those of the ranks with most tokens."""
        return self._all_operators[-1]

    def make(self, layer: Layer, position: int) -> Make:
        """What *layer* at its *position* in its chunk has in common with others that run alike but for routed rows."""
        return replace(layer, index=0), self._job.recompute_of(layer, position, self._number)

    def layer(
        self, layer: Layer, make: Make, adapters: dict[str, Adapter]
    ) -> tuple[list[LayerPlan], list[Step | None]]:
        """Plans of *layer*, one for each set of sequences, and its operators but those over routed rows: priced once
        for all layers of its *make*.
        """
        if make not in self._known:
            plans = [operators.layer(layer) for operators in self._all_operators]
            self._known[make] = plans, self.of_plans(plans, adapters)
        return self._known[make]

    def module(self, number: int) -> tuple[list[LayerPlan], tuple[Layer | None, ...]]:
        """Plans of a multi-token-prediction module, likewise, and the layer that each operator is of."""
        found = [operators.module(number) for operators in self._all_operators]
        return [plan for plan, _ in found], found[-1][1]

    def of_plans(self, plans: Sequence[LayerPlan], adapters: dict[str, Adapter]) -> list[Step | None]:
        """The operators of *plans*; None in place of those over routed rows."""
        alike = enumerate(zip(*(plan.operators for plan in plans), strict=True))
        return [
            self.merged(operators, adapters, again=plans[-1].runs_again(number))
            if operators[-1].rows == "tokens"
            else None
            for number, operators in alike
        ]

    def merged(self, alike: Sequence[Operator], adapters: dict[str, Adapter], *, again: bool = False) -> Step:
        """One operator, for every set of sequences."""
        steps = [pricer.step(op, adapters, None, again=again) for pricer, op in zip(self.pricers, alike, strict=True)]
        return unlike(steps, self._which)

    def routed(self, operator: Operator, adapters: dict[str, Adapter], load: LayerLoad | None, *, again: bool) -> Step:
        """One operator over the rows of *load*."""
        assert load is not None
        step, parts = self.pricers[-1].step(operator, adapters, load, again=again), self._job.exchange_parts
        if parts == 1:
            return step
        part = self.pricers[-1].step(operator, adapters, load.part(parts), again=again)
        return step.in_parts(parts, part)

    @cached_property
    def embedding(self) -> list[Step]:
        """The input embedding."""
        return self._end([operators.embedding() for operators in self._all_operators])

    @cached_property
    def loss(self) -> list[Step]:
        """What is behind the last layer."""
        return self._end([operators.loss() for operators in self._all_operators])

    @cached_property
    def module_ends(self) -> list[list[Step]]:
        """A module's embedding, and its loss."""
        found = [operators.module_ends() for operators in self._all_operators]
        return [self._end(alike) for alike in zip(*found, strict=True)]

    def images(self, job: Job, costs: Costs, network: Network, emitter: Emitter, layout: Layout) -> ImageCode | None:
        """The code of the vision tower for the images of *job*'s only micro-batch."""
        loads, place = StageOperators(job, layout, self._number).images()
        if not loads:
            return None

        def price(operator: Operator, trained: bool) -> Step:
            all_trained = trained and job.trained.lora_rank is None
            return Pricer(costs, network, tokens=job.workload.tokens, all_trained=all_trained).step(operator, {}, None)

        return image_code(job, emitter, loads, place, price)

    def _end(self, alike: Sequence[tuple[Operator, ...]]) -> list[Step]:
        return [self.merged(operators, self._adapters) for operators in zip(*alike, strict=True)]


class BatchSteps:
    """Stage *number* of *job*, which has one micro-batch; *tokens* prices what runs over its tokens. Loads are those of
    what is *like* it.
    """

    def __init__(
        self,
        job: Job,
        costs: Costs,
        network: Network,
        layout: Layout,
        number: int,
        tokens: TokenSteps,
        like: BatchSteps | None = None,
    ) -> None:
        self._job, self._costs, self._network, self._layout = job, costs, network, layout
        self._number = number
        self._own = job.own_architecture
        self.tokens = tokens
        self.loads: dict[int, LayerLoad] = expert_loads(job, number) if like is None else like.loads
        self._dense: dict[Make, LayerSteps] = {}
        self.layers = [
            self._steps(layer, position)
            for layer, position in zip(job.layers_of(number), job.positions_of(number), strict=False)
        ]
        self._modules = [self._module_steps(module) for module in range(len(job.modules_of(number)))]

    def code(self, emitter: Emitter, offload: ActivationOffload | None) -> StageCode:
        """The stage's code for one program."""
        until, chunks = 0, []
        for chunk, layers in enumerate(self._job.chunks_of(self._number)):
            chunks.append(self._chunk(emitter, chunk, range(until, until + len(layers)), offload))
            until += len(layers)
        steps = [*self.layers, *self._modules]
        made = {one: one.code(emitter, offload) for one in dict.fromkeys(steps)}
        return StageCode(self._number, [made[one] for one in steps], chunks, self.tokens.input_bytes)

    def _chunk(self, emitter: Emitter, chunk: int, places: range, offload: ActivationOffload | None) -> ChunkCode:
        tokens, pipeline = self.tokens, self._job.pipeline
        first, last = (is_(self._number, chunk) for is_ in (pipeline.is_first, pipeline.is_last))
        modules = range(len(self.layers), len(self.layers) + len(self._modules) * last)

        def code(steps: list[Step]) -> LayerCode:
            return LayerCode(emitter, steps, sent=sent_by(offload, steps, NOT_AWAY))

        return ChunkCode(
            places=[*places, *modules],
            embedding=code(tokens.embedding) if first else None,
            loss=code(tokens.loss) if last else None,
            images=tokens.images(self._job, self._costs, self._network, emitter, self._layout) if first else None,
            predictions=[PredictionCode(*map(code, tokens.module_ends)) for _ in modules],
        )

    def _steps(self, layer: Layer, position: int) -> LayerSteps:
        make, load = self.tokens.make(layer, position), self.loads.get(layer.index)
        if load is None and make in self._dense:
            return self._dense[make]
        adapters = self._job.trained.adapters(layer_parameters(self._own, self._own.layers[layer.index]))
        plans, priced = self.tokens.layer(layer, make, adapters)
        loads = list(self._loads_along(plans[-1].operators, load))
        steps = self._graphed(self._with_rows(plans, priced, adapters, loads))
        if load is None:
            self._dense[make] = steps
        return steps

    def _graphed(self, layer: LayerSteps) -> LayerSteps:
        if not self._job.cuda_graphs or self._job.captured:
            return layer
        graphs = Graphs(self._job.cuda_graphs, self._job.cluster.accelerator, self._costs)
        steps, reruns = graphs.capture(layer.steps, layer.reruns, self.tokens.input_bytes)
        return replace(layer, steps=steps, reruns=reruns)

    def _module_steps(self, number: int) -> LayerSteps:
        """Of a multi-token-prediction module."""
        adapters = self._job.trained.adapters(mtp_module_parameters(self._own, self._job.mesh.tp))
        plans, layers = self.tokens.module(number)
        loads: list[LayerLoad | None] = []
        for layer, positions in groupby(range(len(layers)), key=lambda position: layers[position]):
            within = tuple(plans[-1].operators[position] for position in positions)
            loads += self._loads_along(within, self.loads.get(layer.index) if layer else None)
        return self._with_rows(plans, self.tokens.of_plans(plans, adapters), adapters, loads)

    def _with_rows(
        self,
        plans: Sequence[LayerPlan],
        priced: Sequence[Step | None],
        adapters: dict[str, Adapter],
        loads: Sequence[LayerLoad | None],
    ) -> LayerSteps:
        """The steps of a layer: those *priced* already, and those over the rows of *loads*."""
        plan = plans[-1]
        steps = [
            step or self.tokens.routed(operator, adapters, load, again=plan.runs_again(number))
            for number, (operator, load, step) in enumerate(zip(plan.operators, loads, priced, strict=True))
        ]
        reruns = [
            replace(rerun, idle=idle(steps, *rerun.stretch.cut)) for rerun in self._reruns(plans, adapters, loads)
        ]
        return LayerSteps(steps, reruns, plan.keeps_input, plan.away)

    def _reruns(
        self, plans: Sequence[LayerPlan], adapters: dict[str, Adapter], loads: Sequence[LayerLoad | None]
    ) -> Iterator[Rerun]:
        """What of the layer runs again, with the copies of what it discards."""
        for stretch, *alike in zip(plans[-1].stretches, *(plan.stretches for plan in plans), strict=True):
            copies = [one.restore for one in alike if one.restore is not None]
            if not copies:
                yield Rerun(stretch, None)
            elif copies[-1].rows == "routed":
                yield Rerun(stretch, self.tokens.routed(copies[-1], adapters, loads[stretch.before], again=False))
            else:
                yield Rerun(stretch, self.tokens.merged(copies, adapters))

    def _loads_along(self, operators: Iterable[Operator], load: LayerLoad | None) -> Iterator[LayerLoad | None]:
        """The load that each operator sees: from the gather to the scatter of etp ranks, that of all of them."""
        own, group = load, load and load.of_group(self._job.mesh.etp)
        for operator in operators:
            moves = {collective.operation for collective in operator.forward_collectives if collective.axis == "etp"}
            load = group if "all_gather" in moves else load
            yield load
            load = own if "reduce_scatter" in moves else load


def expert_loads(job: Job, stage: int) -> dict[int, LayerLoad]:
    """Expert load of the stage's MoE layers, by layer index."""
    (batch,), domain = job.micro_batches, job.cluster.scale_up_domain
    numbers = {layer.index: number for number, layer in enumerate(job.architecture.moe_layers())}
    loads = {}
    modules = (layer for module in job.modules_of(stage) for layer in module)
    for layer in (*job.layers_of(stage), *modules):
        if layer.index in numbers:
            assert batch.rows is not None
            assert isinstance(layer.feed_forward, MixtureOfExperts)
            number, choice = numbers[layer.index], job.choice(layer.feed_forward)
            picked = None if batch.destinations is None else batch.destinations[number]
            share = batch.source_share
            loads[layer.index] = layer_load(
                batch.rows[number], job.mesh, job.folding, job.exchange, choice, domain, share, picked
            )
    return loads
