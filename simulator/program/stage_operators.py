"""The operators of one pipeline stage, as the job's data parallelism has them run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from math import prod

from simulator.engine.task import Allocation
from simulator.model.architecture import GroupedAttention, Layer
from simulator.model.operator import Kernel, Operator
from simulator.model.operators.float8 import multiplies_in_float8
from simulator.model.operators.float8_casts import once_a_step
from simulator.model.operators.layers import embedding_operators, listed_operators, loss_operators
from simulator.model.operators.multi_token_prediction import module_embedding, module_loss, module_parts
from simulator.model.operators.overlapped_tensor_parallel import buffer_bytes
from simulator.model.operators.vision import Segment, place_images, segments
from simulator.model.recompute import LayerPlan, Recompute, plan_layer
from simulator.model.split import share
from simulator.program.emitter import allocation, tensors
from simulator.program.exchanges import exchanges
from simulator.program.image_code import different_loads
from simulator.program.job import Job
from simulator.program.layout import Layout
from simulator.program.megatron import gather_buffer_bytes, hooked_weights, unread_gradients, with_hooks, with_split
from simulator.program.unit import Unit

_EXPERT_STREAMS = 4
"""Streams of Transformer Engine's grouped matmuls."""
_OVERLAP_STREAMS = 3
"""Streams of its products beside transfers, each with a workspace."""


class StageOperators:
    """Operators of stage *number*."""

    def __init__(self, job: Job, layout: Layout, number: int) -> None:
        self._job = job
        self._number = number
        self._layout = layout
        self._layers = job.layers_of(number)
        self._places = {layer.index: place for place, layer in enumerate(self._layers)}
        self._positions = job.positions_of(number)
        self._modules = job.modules_of(number)
        self._hooked = job.zero == 1 or job.megatron_fsdp
        self._engine = job.workload.megatron
        """Whether layers are Transformer Engine's."""
        self._fused = job.distributed_optimizer.fused_accumulation
        """Whether their matmuls add gradients into the buffer."""
        self._last = job.pipeline.ends(number)
        self._plans: dict[tuple[Layer, Recompute], LayerPlan] = {}

    def layer(self, layer: Layer) -> LayerPlan:
        """Those of *layer*, for any layer of its make that is recomputed alike, and which of them run again."""
        make, place = replace(layer, index=0), self._places[layer.index]
        recompute = self._job.recompute_of(layer, self._positions[place], self._number)
        if (make, recompute) not in self._plans:
            self._plans[make, recompute] = self._plan([self._made(make)], place, recompute)
        return self._plans[make, recompute]

    def _made(self, make: Layer) -> tuple[Operator, ...]:
        """The operators of a layer of that *make*."""
        workload = self._job.workload
        operators = listed_operators(self._job.architecture, make, workload)
        if self._engine and workload.attention == "flash" and isinstance(make.mixer, GroupedAttention):
            operators = tuple(with_split(operators, share(make.mixer, workload.tp), workload))
        return operators

    def module(self, number: int) -> tuple[LayerPlan, tuple[Layer | None, ...]]:
        """Those of a multi-token-prediction module, and for each the layer that it is of, if it is of one."""
        parts = module_parts(self._job.architecture, self._modules[number], self._job.workload, keeps_hidden=number > 0)
        place = len(self._layers) + number
        recompute = self._job.recompute.of_layer(self._positions[place])
        plan = self._plan([operators for _, operators in parts], place, recompute)
        return plan, tuple(layer for layer, operators in parts for _ in self._present(operators))

    def _plan(self, parts: list[tuple[Operator, ...]], place: int, recompute: Recompute) -> LayerPlan:
        plan = plan_layer(map(self._present, parts), recompute, self._job.stack)
        return replace(plan, operators=self._run(plan.operators, self._layout.layers[place]))

    def _present(self, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
        """Those of *operators* that run in this job."""
        return tuple(op for op in operators if self._job.mesh.ep > 1 or not op.expert_parallel_only)

    def module_ends(self) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
        """Those of a module's embedding and of its loss, for any module."""
        model, workload = self._job.architecture, self._job.workload
        adds = not self._hooked and (model.tied_embeddings or len(self._modules) > 1)
        embedding = module_embedding(model, workload, adds=adds)
        loss = module_loss(model, workload, self._job.loss, adds=not self._hooked)
        return self._run(embedding, self._layout.root), self._run(loss, self._layout.root)

    def embedding(self) -> tuple[Operator, ...]:
        """Those of the input embedding; its gradient is added to that of a tied head or of a prediction module.

        A hook does so in the buffer.
        """
        model = self._job.architecture
        adds = not self._hooked and (model.tied_embeddings or bool(self._modules))
        model = replace(model, tied_embeddings=adds)
        return self._run(embedding_operators(model, self._job.workload), self._layout.root)

    def loss(self) -> tuple[Operator, ...]:
        """Those behind the last layer."""
        operators = loss_operators(self._job.architecture, self._job.workload, self._job.loss)
        return self._run(operators, self._layout.root)

    def images(self) -> tuple[list[tuple[Segment, ...]], list[Operator]]:
        """Segments of the vision tower for each number of images that ranks have, and what places their tokens."""
        tower, load, unit = self._job.architecture.vision, self._job.images, self._layout.vision
        if tower is None or load is None or unit is None:
            return [], []
        counts, _ = different_loads(self._job)
        loads = [replace(self._job.workload, image_patches=load.image_patches(tower, int(n))) for n in counts]
        run = [
            tuple(replace(one, operators=self._run(one.operators, unit)) for one in segments(tower, workload))
            for workload in loads
        ]
        return run, [place_images(tower, workload) for workload in loads]

    def made_gradients(self) -> frozenset[str]:
        """Weights whose gradients are tensors before they are in the buffer: hooked ones, and the output layer's."""
        hooked = {name for op in (*self._within, *self.embedding()) for name in hooked_weights(op, fused=self._fused)}
        return frozenset(hooked | {name for op in self.loss() for name in op.weights})

    def held(self) -> list[Allocation]:
        """What running them leaves allocated for good."""
        return [
            *self._unread_gradients(),
            *self._gather_buffer(),
            *self._overlap_buffers(),
            *self._float8_copies(),
            *self._matmul_workspaces(),
            *self._exchange_buffer(),
        ]

    def _unread_gradients(self) -> list[Allocation]:
        """Unread gradients of linear layers that the stage holds on to, where its layers are Transformer Engine's."""
        if not (self._engine and self._fused) or self._job.trained.lora_rank is not None:
            return []
        sizes = unread_gradients(self._within)
        return [tensors("resident.unread gradients", "gradients", sizes)]

    @cached_property
    def _within(self) -> tuple[Operator, ...]:
        """Those of a layer of each make, of the prediction modules and of the vision tower."""
        return tuple(self._listed())

    def _listed(self) -> Iterator[Operator]:
        for layer in self._makes():
            yield from self.layer(layer).operators
        for number in range(len(self._modules)):
            yield from self.module(number)[0].operators
        for segment in next(iter(self.images()[0]), ()):
            yield from segment.operators

    def _gather_buffer(self) -> list[Allocation]:
        """The buffer that the output layer gathers its input into, where the stage has one."""
        workload = self._job.workload
        split = workload.tp > 1 and workload.sequence_parallel
        if not (self._engine and split and self._last):
            return []
        size = gather_buffer_bytes(workload, self._job.architecture.hidden)
        return [allocation("resident.gather buffer", "communication buffers", size)]

    def _overlap_buffers(self) -> list[Allocation]:
        """What transfers beside products go through, one for all layers."""
        workload = self._job.workload
        if not workload.overlaps_tensor_parallel:
            return []
        size = buffer_bytes(workload, self._job.architecture.hidden)
        return [allocation("resident.overlap buffers", "communication buffers", size)]

    def _exchange_buffer(self) -> list[Allocation]:
        """What the exchange of rows keeps, one for all layers."""
        job, slots = self._job, self._job.expert_slots
        rows = [operator.payload_bytes for operator in self._within if operator.name == "combine"]
        if not rows or slots is None or job.mesh.ep == 1:
            return []
        size = exchanges()[job.exchange].buffer_bytes(slots * job.mesh.ep, job.workload.sent_tokens, max(rows))
        return [allocation("resident.exchange buffer", "communication buffers", size)] if size else []

    def _matmul_workspaces(self) -> list[Allocation]:
        """What the matmul library holds: PyTorch has a handle in its own thread and one in autograd's.

        Transformer Engine brings one of its own, and leaves those two to the output layer; the streams on which it runs
        the matmuls of experts have one each (`get_cublas_workspace`).
        """
        streams = _EXPERT_STREAMS if self._job.per_expert and self._job.routing is not None else 0
        engine = _OVERLAP_STREAMS if self._job.workload.overlaps_tensor_parallel else 1
        handles = engine + streams + 2 * self._last if self._engine else 2
        size = self._job.cluster.accelerator.matmul_workspace_bytes
        return [tensors("resident.matmul workspaces", "workspace", [size] * handles)] if size else []

    def weight_casts(self) -> list[Kernel]:
        """The kernels that make the fp8 copies of weights that are kept from step to step."""
        float8, sizes = self._job.workload.float8, self._float8_weights
        passes = once_a_step(float8) if float8 and sizes else ()
        return [Kernel(step.kind, 0.0, step.bytes * sum(sizes), launches=len(sizes)) for step in passes]

    def _float8_copies(self) -> list[Allocation]:
        """Both fp8 copies of each weight that is kept so, beside the bf16 one; gathered in fp8, they stand for it."""
        float8, sizes = self._job.workload.float8, self._float8_weights
        if not sizes or (float8 and float8.gathered):
            return []
        return [tensors("resident.fp8 copies", "parameters", [size for size in sizes for _ in range(2)])]

    @cached_property
    def _float8_weights(self) -> list[float]:
        """Elements of each weight of the stage that is kept in fp8; experts count together."""
        float8 = self._job.workload.float8
        if float8 is None or not float8.kept:
            return []
        experts = self._job.expert_slots or 0
        plans = (*map(self.layer, self._layers), *(self.module(number)[0] for number in range(len(self._modules))))
        return [
            float(prod(operator.forward[-1].shape[-2:]) * (experts if operator.rows == "routed" else 1))
            for plan in plans
            for operator in plan.operators
            if multiplies_in_float8(operator)
        ]

    def _makes(self) -> list[Layer]:
        """One layer of each make."""
        return list({replace(layer, index=0): layer for layer in self._layers}.values())

    def _run(self, operators: tuple[Operator, ...], unit: Unit) -> tuple[Operator, ...]:
        if not self._hooked:
            return operators
        elements = {name: count for name, (_, count) in unit.trained.items()}
        hooks = partial(
            with_hooks,
            elements=elements,
            reduce_bytes=self._job.reduce_bytes,
            fused=self._fused,
            adds=not self._job.megatron_fsdp,
            experts=self._job.expert_slots or 1,
        )
        return tuple(map(hooks, operators))
