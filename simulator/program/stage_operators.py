"""The operators of one pipeline stage, as the job's data parallelism has them run."""

from __future__ import annotations

from dataclasses import replace

from simulator.engine.task import Allocation
from simulator.model.architecture import Layer
from simulator.model.operator import Operator
from simulator.model.operators.layers import embedding_operators, layer_operators, loss_operators
from simulator.program.emitter import tensors
from simulator.program.job import Job
from simulator.program.layout import Layout
from simulator.program.megatron import hooked_weights, unread_gradients, with_hooks
from simulator.program.unit import Unit


class StageOperators:
    """Operators of stage *number*."""

    def __init__(self, job: Job, layout: Layout, number: int) -> None:
        self._job = job
        self._layout = layout
        self._layers = job.layers_of(number)
        self._hooked = job.zero == 1

    def layer(self, layer: Layer) -> tuple[Operator, ...]:
        """Those of *layer*, for any layer of its make."""
        make, unit = replace(layer, index=0), self._layout.layers[layer.index - self._layers[0].index]
        operators = layer_operators(self._job.architecture, make, self._job.workload)
        return self._run(tuple(op for op in operators if self._job.mesh.ep > 1 or not op.expert_parallel_only), unit)

    def embedding(self) -> tuple[Operator, ...]:
        """Those of the input embedding; a hook adds its gradient to a tied one's in the buffer."""
        model = self._job.architecture
        model = replace(model, tied_embeddings=False) if self._hooked else model
        return self._run(embedding_operators(model, self._job.workload), self._layout.root)

    def loss(self) -> tuple[Operator, ...]:
        """Those behind the last layer."""
        operators = loss_operators(self._job.architecture, self._job.workload, self._job.loss)
        return self._run(operators, self._layout.root)

    def made_gradients(self) -> frozenset[str]:
        """Weights whose gradients are tensors before they are in the buffer: hooked ones, and the output layer's."""
        within = (op for layer in self._makes() for op in self.layer(layer))
        hooked = {name for op in (*within, *self.embedding()) for name in hooked_weights(op)}
        return frozenset(hooked | {name for op in self.loss() for name in op.weights})

    def unread_gradients(self) -> list[Allocation]:
        """Unread gradients of linear layers that the stage holds on to, where its layers are Transformer Engine's."""
        if not self._hooked or self._job.workload.execution != "fused" or self._job.trained.lora_rank is not None:
            return []
        sizes = unread_gradients(op for layer in self._makes() for op in self.layer(layer))
        return [tensors("resident.unread gradients", "gradients", sizes)]

    def _makes(self) -> list[Layer]:
        """One layer of each make."""
        return list({replace(layer, index=0): layer for layer in self._layers}.values())

    def _run(self, operators: tuple[Operator, ...], unit: Unit) -> tuple[Operator, ...]:
        if not self._hooked:
            return operators
        elements = {name: count for name, (_, count) in unit.trained.items()}
        return tuple(with_hooks(operator, elements, self._job.reduce_bytes) for operator in operators)
