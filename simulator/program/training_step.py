"""A training step as programs, one a pipeline stage: micro-batches in the schedule's order, then the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from simulator.model.architecture import Layer, MixtureOfExperts
from simulator.model.operator import Operator
from simulator.model.parameters import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_module_parameters,
)
from simulator.model.recompute import LayerPlan, Recompute
from simulator.parallel.placement import Placement
from simulator.parallel.sharding import Adapter
from simulator.program.activation_offload import ActivationOffload
from simulator.program.costs import Costs
from simulator.program.data_parallel import data_parallel
from simulator.program.emitter import Emitter
from simulator.program.expert_load import LayerLoad, layer_load
from simulator.program.host_memory import HostMemory
from simulator.program.host_update import HostUpdate
from simulator.program.image_code import ImageCode, image_code
from simulator.program.job import Job
from simulator.program.layer_code import Later, LayerCode, Rerun
from simulator.program.layout import lay_out
from simulator.program.network import Network, scale_up_domain
from simulator.program.optimizers import rules
from simulator.program.schedules import Pass, enough, schedules
from simulator.program.set_up import set_up
from simulator.program.stage import ChunkCode, PredictionCode, StageCode, StageProgram, StageWriter
from simulator.program.stage_operators import StageOperators
from simulator.program.step import Pricer, Step
from simulator.program.update import Update
from simulator.program.weaving import woven


@dataclass(frozen=True, slots=True)
class _LayerSteps:
    """A layer's priced operators, what of them runs again, and whether the layer's input is kept for that."""

    steps: list[Step]
    reruns: list[Rerun]
    keeps_input: bool

    def code(self, emitter: Emitter, offload: ActivationOffload | None) -> LayerCode:
        return LayerCode(emitter, self.steps, self.reruns, keeps_input=self.keeps_input, offload=offload)


class TrainingStep:
    """Lowers a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._costs = Costs(job.cluster.accelerator, job.workload.execution, per_expert=job.per_expert)
        self.stages = job.mesh.pp
        self._stages = [_Stage(job, self._costs, number) for number in range(job.mesh.pp)]

    def held_at_once(self, micro_batches: int) -> int:
        """Micro-batches, of so many in all, that memory is the same for as for all of them."""
        return enough(self._job.schedule, self.stages, micro_batches, self._job.pipeline.chunks)

    @property
    def round(self) -> int:
        """Micro-batches after which a filled pipeline does the same again."""
        return self._job.pipeline.round

    def programs(self, micro_batches: int) -> tuple[StageProgram, ...]:
        """The step with *micro_batches* of them, a program for each stage."""
        return tuple(stage.program(micro_batches) for stage in self._stages)


class _Stage:
    """Lowers one pipeline stage."""

    def __init__(self, job: Job, costs: Costs, number: int) -> None:
        self._job = job
        self._costs = costs
        self._number = number
        levels = [level.size for level in job.cluster.levels]
        self._network = Network(job.cluster, Placement(job.mesh, job.folding, levels, number), job.mesh)
        self._host = HostMemory(job.cluster, job.folding.behaviours)
        self._own = job.own_architecture
        self._layout = lay_out(job, number)
        everything = job.trained.lora_rank is None
        self._pricer = Pricer(costs, self._network, tokens=job.workload.tokens, all_trained=everything)
        self._frozen_pricer = Pricer(costs, self._network, tokens=job.workload.tokens, all_trained=False)
        self._operators = StageOperators(job, self._layout, number)
        self._loads = _expert_loads(job, number)
        self._known: dict[tuple[Layer, Recompute], tuple[LayerPlan, list[Step]]] = {}
        self._layers = [
            self._steps(layer, position)
            for layer, position in zip(job.layers_of(number), job.positions_of(number), strict=False)
        ]
        self._modules = [self._module_steps(module) for module in range(len(job.modules_of(number)))]

    def program(self, micro_batches: int) -> StageProgram:
        """The stage's passes in the schedule's order, then the update."""
        job, emitter = self._job, Emitter(self._costs.launch_ns, self._costs.looped_launch_ns)
        sharding = data_parallel(
            job,
            emitter,
            self._costs,
            self._network,
            self._layout,
            self._operators,
            self._host,
            micro_batches,
            self._number,
        )
        writer = StageWriter(job, self._layout, self._code(emitter), emitter, sharding, self._network)
        ends: dict[int, int] = {}
        first: int | None = None
        for one in schedules()[job.schedule](self._number, job.mesh.pp, micro_batches, job.pipeline.chunks):
            begins = len(emitter.tasks)
            self._write(writer, one, beside=first is not None)
            if first is not None:
                emitter.reorder(first, woven(emitter.tasks, first, begins))
            first = begins if one.paired and job.weaves else None
            ends[one.micro_batch] = emitter.last
        birth = writer.update(partial(self._update, emitter))
        held, rebuilt = self._operators.held(), sharding.rebuilt(self._layout.resident)
        return StageProgram(
            tasks=emitter.tasks,
            resident=[*self._layout.resident, *held],
            born=list(self._layout.born),
            birth=birth,
            set_up=set_up(job, self._layout, held, rebuilt),
            rebuilt=rebuilt,
            micro_batch_ends=tuple(ends[m] for m in sorted(ends)),
            first_rank=self._number * job.mesh.stage_ranks,
            layout=self._layout,
            loads=self._loads,
        )

    def _write(self, writer: StageWriter, one: Pass, *, beside: bool) -> None:
        """Write a pass, which may run *beside* the one before."""
        if one.direction == "forward":
            writer.forward(one.micro_batch, one.chunk)
        elif one.direction == "weights":
            writer.weights(one.micro_batch, one.chunk)
        else:
            put_off = "beside exchanges" if beside and self._job.fills else "never"
            later: Later = "in a pass" if one.direction == "inputs" else put_off  # type: ignore[assignment]
            writer.backward(one.micro_batch, one.chunk, later=later)

    def _update(self, emitter: Emitter) -> None:
        """Write the update, on the card and behind it on the host's cores."""
        job, layout = self._job, self._layout
        if layout.on_card.tensors or not layout.on_host.tensors:
            update = Update(emitter, self._costs, self._network, job.optimizer, layout.on_card)
            rules()[job.optimizer.name].write(update)
        HostUpdate(job, emitter, self._host, layout.on_host.tensors).write()

    def _code(self, emitter: Emitter) -> StageCode:
        job, until, chunks = self._job, 0, []
        way, offload = job.offload.activations, None
        if way is not None:
            offload = ActivationOffload(emitter, self._host, way)
        for chunk, layers in enumerate(job.chunks_of(self._number)):
            chunks.append(self._chunk(emitter, chunk, range(until, until + len(layers)), offload))
            until += len(layers)
        code = [layer.code(emitter, offload) for layer in (*self._layers, *self._modules)]
        return StageCode(number=self._number, layers=code, chunks=chunks)

    def _chunk(self, emitter: Emitter, chunk: int, places: range, offload: ActivationOffload | None) -> ChunkCode:
        ends = [*embedding_parameters(self._own), *head_parameters(self._own)]
        adapters = self._job.trained.adapters(ends)

        def code(operators: Iterable[Operator]) -> LayerCode:
            steps = [self._pricer.step(operator, adapters, None) for operator in operators]
            return LayerCode(emitter, steps, offload=offload)

        first, last = (is_(self._number, chunk) for is_ in (self._job.pipeline.is_first, self._job.pipeline.is_last))
        modules = range(len(self._layers), len(self._layers) + len(self._modules) * last)
        return ChunkCode(
            places=[*places, *modules],
            embedding=code(self._operators.embedding()) if first else None,
            loss=code(self._operators.loss()) if last else None,
            images=self._images(emitter) if first else None,
            predictions=[PredictionCode(*map(code, self._operators.module_ends())) for _ in modules],
        )

    def _images(self, emitter: Emitter) -> ImageCode | None:
        loads, place = self._operators.images()
        if not loads:
            return None

        def price(operator: Operator, trained: bool) -> Step:
            return (self._pricer if trained else self._frozen_pricer).step(operator, {}, None)

        return image_code(self._job, emitter, loads, place, price)

    def _steps(self, layer: Layer, position: int) -> _LayerSteps:
        """Of *layer* at its *position* in its chunk; operators that no routing touches are priced once for all layers
        of its make.
        """
        make = replace(layer, index=0), self._job.recompute.of_layer(position)
        adapters = self._job.trained.adapters(layer_parameters(self._own, self._own.layers[layer.index]))
        plan = self._known[make][0] if make in self._known else self._operators.layer(layer)
        loads = list(self._loads_along(plan.operators, self._loads.get(layer.index)))
        if make not in self._known:
            self._known[make] = plan, [self._priced(plan, n, adapters, load) for n, load in enumerate(loads)]
        steps = [
            self._priced(plan, number, adapters, load)
            if load is not None and plan.operators[number].rows == "routed"
            else step
            for number, (load, step) in enumerate(zip(loads, self._known[make][1], strict=True))
        ]
        return _LayerSteps(steps, self._reruns(plan, adapters, loads), plan.keeps_input)

    def _module_steps(self, number: int) -> _LayerSteps:
        """Of a multi-token-prediction module."""
        adapters = self._job.trained.adapters(mtp_module_parameters(self._own, self._job.mesh.tp))
        plan, layers = self._operators.module(number)
        loads: list[LayerLoad | None] = []
        for layer, positions in groupby(range(len(layers)), key=lambda position: layers[position]):
            within = tuple(plan.operators[position] for position in positions)
            loads += self._loads_along(within, self._loads.get(layer.index) if layer else None)
        steps = [self._priced(plan, position, adapters, load) for position, load in enumerate(loads)]
        return _LayerSteps(steps, self._reruns(plan, adapters, loads), plan.keeps_input)

    def _priced(self, plan: LayerPlan, number: int, adapters: dict[str, Adapter], load: LayerLoad | None) -> Step:
        return self._pricer.step(plan.operators[number], adapters, load, again=plan.runs_again(number))

    def _reruns(self, plan: LayerPlan, adapters: dict[str, Adapter], loads: Sequence[LayerLoad | None]) -> list[Rerun]:
        """What of the layer runs again, with the copies of what it discards."""
        copies = (stretch.restore for stretch in plan.stretches)
        return [
            Rerun(stretch, self._pricer.step(copy, adapters, loads[stretch.before]) if copy else None)
            for stretch, copy in zip(plan.stretches, copies, strict=True)
        ]

    def _loads_along(self, operators: tuple[Operator, ...], load: LayerLoad | None) -> Iterator[LayerLoad | None]:
        """The load that each operator sees: from the gather to the scatter of etp ranks, that of all of them."""
        own, group = load, load and load.of_group(self._job.mesh.etp)
        for operator in operators:
            moves = {collective.operation for collective in operator.forward_collectives if collective.axis == "etp"}
            load = group if "all_gather" in moves else load
            yield load
            load = own if "reduce_scatter" in moves else load


def _expert_loads(job: Job, stage: int) -> dict[int, LayerLoad]:
    """Expert load of the stage's MoE layers, by layer index."""
    numbers = {layer.index: number for number, layer in enumerate(job.architecture.moe_layers())}
    loads = {}
    modules = (layer for module in job.modules_of(stage) for layer in module)
    for layer in (*job.layers_of(stage), *modules):
        if layer.index in numbers:
            assert job.routing is not None
            rows = job.routing.rows[0, numbers[layer.index]]
            top_k = layer.feed_forward.top_k if isinstance(layer.feed_forward, MixtureOfExperts) else 1
            loads[layer.index] = layer_load(
                rows, job.mesh, job.folding, job.exchange, top_k, scale_up_domain(job.cluster)
            )
    return loads
