"""A training step as a program: micro-batches under FSDP2 and expert parallelism, then the optimizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from simulator.engine.task import Allocation, Task
from simulator.hardware.cluster import Cluster
from simulator.model.architecture import Architecture, Layer, MixtureOfExperts
from simulator.model.operator import Kernel, Operator, Workload
from simulator.model.operators.layers import embedding_operators, layer_operators, loss_operators
from simulator.model.parameters import embedding_parameters, head_parameters, layer_parameters
from simulator.parallel.folding import Folding
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.parallel.sharding import TrainedState
from simulator.program.costs import Costs, Priced
from simulator.program.emitter import Emitter, allocation
from simulator.program.expert_load import LayerLoad, layer_load
from simulator.program.fsdp import COMPUTE_BYTES, Fsdp
from simulator.program.layer_code import LayerCode, Pricer, Step
from simulator.program.layout import Layout, Trained, lay_out
from simulator.program.network import Network
from simulator.routing.table import RoutingTable

Loss = Literal["plain", "chunked", "cut"]

ADAMW_KERNEL_TENSORS = 100
"""Tensors that one multi-tensor kernel of the optimizer takes, about: its argument space holds so many addresses."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training step in terms of the floors below."""

    architecture: Architecture
    cluster: Cluster
    mesh: Mesh
    folding: Folding
    workload: Workload
    trained: Trained
    state: TrainedState
    frozen_bytes: int
    reduce_bytes: int
    reshard_after_forward: bool
    prefetch: int
    recompute: bool
    loss: Loss
    optimizer_bytes: int
    """Bytes that the optimizer reads and writes for each element it owns."""
    routing: RoutingTable | None


@dataclass(frozen=True, slots=True)
class Program:
    """Tasks in issue order with what is resident around them."""

    tasks: list[Task]
    resident: list[Allocation]
    micro_batch_ends: tuple[int, ...]
    """Position of the last task of each micro-batch."""
    layout: Layout
    loads: dict[int, LayerLoad]
    """Expert load by layer index."""


class TrainingStep:
    """Lowers a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._costs = Costs(job.cluster.accelerator)
        placement = Placement(job.mesh, job.folding, [level.size for level in job.cluster.levels])
        self._network = Network(job.cluster, placement)
        self._layout = lay_out(job.architecture, job.mesh, job.trained, job.state, job.frozen_bytes)
        self._loads = self._expert_loads()
        everything = job.trained.lora_rank is None
        self._pricer = Pricer(self._costs, self._network, tokens=job.workload.tokens, all_trained=everything)
        self._known: dict[Layer, list[Step]] = {}

    def program(self, micro_batches: int) -> Program:
        """The step with *micro_batches* of them."""
        emitter = Emitter(self._costs.launch_ns)
        fsdp = Fsdp(
            emitter,
            self._costs,
            self._network,
            stored_bytes=self._job.state.parameter,
            reduce_bytes=self._job.reduce_bytes,
        )
        writer = _Writer(self._job, self._layout, emitter, fsdp)
        layers = [LayerCode(emitter, self._steps(layer)) for layer in self._job.architecture.layers]
        embedding, loss = (LayerCode(emitter, steps) for steps in self._root_steps())
        ends = []
        for micro_batch in range(micro_batches):
            emitter.micro_batch = micro_batch
            writer.forward(embedding, layers)
            writer.backward(embedding, layers, loss)
            ends.append(emitter.last)
        emitter.micro_batch = -1
        writer.optimizer(self._optimizer())
        return Program(emitter.tasks, self._layout.resident(), tuple(ends), self._layout, self._loads)

    def _expert_loads(self) -> dict[int, LayerLoad]:
        job, loads = self._job, {}
        for number, layer in enumerate(job.architecture.moe_layers()):
            assert job.routing is not None
            assert isinstance(layer.feed_forward, MixtureOfExperts)
            loads[layer.index] = layer_load(
                job.routing,
                number,
                tokens=job.workload.tokens,
                top_k=layer.feed_forward.top_k,
                mesh=job.mesh,
                folding=job.folding,
            )
        return loads

    def _steps(self, layer: Layer) -> list[Step]:
        """The priced operators of *layer*; those that no routing touches are shared by all layers of its make."""
        make = replace(layer, index=0)
        operators = self._operators(make)
        load = self._loads.get(layer.index)
        adapters = self._job.trained.adapters(layer_parameters(self._job.architecture, layer))
        plain = self._known.get(make)
        if plain is None:
            plain = self._known[make] = [self._pricer.step(operator, adapters, load) for operator in operators]
        routed = {"routed"} if load is not None else set()
        return [
            self._pricer.step(operator, adapters, load) if operator.rows in routed else step
            for operator, step in zip(operators, plain, strict=True)
        ]

    def _operators(self, make: Layer) -> tuple[Operator, ...]:
        operators = layer_operators(self._job.architecture, make, self._job.workload)
        return tuple(op for op in operators if self._job.mesh.ep > 1 or not op.expert_parallel_only)

    def _root_steps(self) -> tuple[list[Step], list[Step]]:
        job = self._job
        embedding = embedding_operators(job.architecture, job.workload)
        loss = loss_operators(job.architecture, job.workload, job.loss)
        adapters = job.trained.adapters([*embedding_parameters(job.architecture), *head_parameters(job.architecture)])
        first = [self._pricer.step(operator, adapters, None) for operator in embedding]
        last = [self._pricer.step(operator, adapters, None) for operator in loss]
        return first, last

    def _optimizer(self) -> Priced:
        """One multi-tensor pass over what the rank owns."""
        elements = self._layout.trained_shard
        tensors = sum(group.parameters for group in self._layout.groups if group.trained_elements)
        launches = max(1, tensors // ADAMW_KERNEL_TENSORS)
        dtype = "bf16" if self._job.state.parameter == COMPUTE_BYTES else "fp32"
        kernel = Kernel("optimizer", 0.0, float(elements * self._job.optimizer_bytes), dtype=dtype)
        return Priced(round(self._costs.seconds(kernel) * 1e9), launches, "measured")


class _Writer:
    """Writes the passes of one micro-batch."""

    def __init__(self, job: Job, layout: Layout, emitter: Emitter, fsdp: Fsdp) -> None:
        self._job = job
        self._emitter = emitter
        self._fsdp = fsdp
        self._root = layout.root
        self._units = layout.layers
        self._input_bytes = float(job.workload.tokens * job.architecture.hidden * job.workload.activation_bytes)

    def forward(self, embedding: LayerCode, layers: list[LayerCode]) -> None:
        """All layers forward, gathering ahead."""
        emitter, fsdp = self._emitter, self._fsdp
        with emitter.at(phase="forward"):
            fsdp.unshard(self._root, keep_buffers=True)
            self._gather_ahead(-1, +1)
            embedding.forward("embedding", keep=False)
        for number, (unit, code) in enumerate(zip(self._units, layers, strict=True)):
            with emitter.at(phase="forward", layer=number):
                fsdp.unshard(unit, keep_buffers=True)
                self._gather_ahead(number, +1)
                code.forward(f"layer {number}", keep=not self._job.recompute, first=self._kept_inputs(number))
                if self._job.reshard_after_forward:
                    fsdp.reshard(unit)

    def backward(self, embedding: LayerCode, layers: list[LayerCode], loss: LayerCode) -> None:
        """Loss forward and backward, then all layers backward, recomputed where asked for."""
        emitter, fsdp = self._emitter, self._fsdp
        last = len(layers) - 1
        with emitter.at(phase="forward"):
            loss.forward("loss", keep=True)
        with emitter.at(phase="backward"):
            self._gather_ahead(len(layers), -1)
            loss.backward("loss", partial(fsdp.gradients, self._root))
        for number in range(last, -1, -1):
            unit, code, tag = self._units[number], layers[number], f"layer {number}"
            with emitter.at(phase="backward", layer=number):
                if self._job.reshard_after_forward:
                    fsdp.unshard(unit, keep_buffers=False)
                    self._gather_ahead(number, -1)
            if self._job.recompute:
                with emitter.at(phase="recompute", layer=number):
                    code.forward(tag, keep=True)
            with emitter.at(phase="backward", layer=number):
                code.backward(tag, partial(fsdp.gradients, unit))
                self._drop_inputs(number)
                fsdp.reshard(unit)
                fsdp.reduce(unit)
        with emitter.at(phase="backward"):
            embedding.backward("embedding", partial(fsdp.gradients, self._root))
            fsdp.reshard(self._root)
            fsdp.reduce(self._root)
            fsdp.finish_reductions()
            fsdp.drop_buffers()

    def optimizer(self, priced: Priced) -> None:
        """Update the parameters once every gradient is reduced."""
        with self._emitter.at(phase="optimizer"):
            self._emitter.compute("optimizer", "optimizer", priced)
            self._fsdp.drop_gradients()

    def _gather_ahead(self, number: int, direction: int) -> None:
        """Issue the gathers of the next layers in *direction*."""
        for ahead in range(1, self._job.prefetch + 1):
            position = number + direction * ahead
            if 0 <= position < len(self._units) and (direction > 0 or self._job.reshard_after_forward):
                self._fsdp.gather(self._units[position])

    def _kept_inputs(self, number: int) -> list[Allocation]:
        """What the forward pass of a layer leaves for the backward pass beside its operators' own saved tensors."""
        kept = []
        if self._job.recompute:
            streams = self._job.architecture.layers[number].hyper_connections
            kept.append(allocation(f"layer {number}.input", "saved activations", streams * self._input_bytes))
        if self._starts_block(number):
            kept.append(allocation(f"layer {number}.block", "saved activations", self._input_bytes))
        return kept

    def _drop_inputs(self, number: int) -> None:
        for item in self._kept_inputs(number):
            self._emitter.release(item.key)

    def _starts_block(self, number: int) -> bool:
        """Whether a new block of residuals, which all later layers read, begins with this layer (AttnRes)."""
        block = self._job.architecture.attn_res_block
        return bool(block) and number % block == 0
