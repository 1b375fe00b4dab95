"""A job: one training step in terms of the floors below, before it is lowered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from simulator.hardware.cluster import Cluster
from simulator.model.architecture import Architecture, Layer, MixtureOfExperts
from simulator.model.operator import Workload
from simulator.model.operators.loss import Variant
from simulator.model.recompute import Recompute, Stack
from simulator.model.split import share_model
from simulator.parallel.folding import Folding
from simulator.parallel.mesh import Mesh
from simulator.program.batch import BatchWay
from simulator.program.buckets import Buckets
from simulator.program.image_load import ImageLoad
from simulator.program.micro_batch import MicroBatch
from simulator.program.offload import NOTHING, Offload
from simulator.program.optimizer import Optimizer
from simulator.program.pipeline import Pipeline
from simulator.program.swap import Swap, ordinals
from simulator.program.trained import Trained
from simulator.program.zero1_overlap import DistributedOptimizer
from simulator.routing.coverage import Choice
from simulator.routing.outcome import Outcome

Zero = Literal[0, 1, 2, 3]
FULL_ITERATION = "full_iteration"
"""Capture of all passes of a step."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training step."""

    architecture: Architecture
    cluster: Cluster
    mesh: Mesh
    folding: Folding
    """Behaviours of a stage's ranks; the same for every stage."""
    workload: Workload
    trained: Trained
    optimizer: Optimizer
    zero: Zero
    """What is sharded, and by what: 0 nothing (DDP); 1 the optimizer (Megatron-LM); 2 gradients as well (DeepSpeed);
    3 parameters as well (FSDP2, Megatron-FSDP)."""
    buckets: Buckets
    """Of gradients, under DDP and ZeRO-2."""
    distributed_optimizer: DistributedOptimizer
    """Megatron-LM's, under ZeRO-1."""
    batch: BatchWay
    """How micro-batches reach the ranks."""
    schedule: str
    pipeline: Pipeline
    weaves: bool
    """Whether exchanges among experts run beside the other pass of a pair."""
    fills: bool
    """Whether gradients of weights run beside exchanges there, too."""
    frozen_bytes: int
    reduce_bytes: int
    megatron_fsdp: bool
    """Whether parameters are sharded by Megatron-FSDP, not FSDP2."""
    reshard_after_forward: bool
    made_whole: bool
    """Whether every rank has the model whole before FSDP2 shards it."""
    prefetch: int
    together: int
    """Micro-batches that go through each layer one after the other between its gather and its release; programs and
    simulations of a step count so many as one."""
    recompute: Recompute
    loss: Variant
    exchange: str
    """How rows find their experts: a file of `exchanges/`."""
    exchange_parts: int
    """Parts of the rows, each exchanged beside the computation of others."""
    per_expert: bool
    """Whether the products of a rank's experts are launched one by one, in a library's loop."""
    in_order: bool
    """Whether experts lie on ranks in their order, so that a group of them lies on neighbouring ranks."""
    cuda_graphs: frozenset[str]
    """Parts of a layer that are captured, see `cuda_graphs`, or all passes (`FULL_ITERATION`)."""
    routing: Outcome | None
    """Rows of every expert slot, and where the experts are; None without experts."""
    micro_batches: tuple[MicroBatch, ...]
    """The unlike micro-batches of a step, which goes through them in turn."""
    offload: Offload = NOTHING
    swaps: tuple[Swap, ...] = ()
    """None; one for all layers; or one for each stage's, whose shares count over the stage's layers alone."""

    @property
    def captured(self) -> bool:
        """Whether all passes of a step are one CUDA graph."""
        return FULL_ITERATION in self.cuda_graphs

    @property
    def images(self) -> ImageLoad | None:
        """Those of the first micro-batch; None for a batch of text alone."""
        return self.micro_batches[0].images

    @property
    def mean_tokens(self) -> float:
        """Tokens that a data-parallel rank brings to a micro-batch, in the mean."""
        usual = (self.workload.sequence_lengths,)
        batches = [batch.lengths or usual for batch in self.micro_batches]
        return sum(sum(map(sum, ranks)) / len(ranks) for ranks in batches) / len(batches)

    @property
    def expert_slots(self) -> int | None:
        """Experts that a rank holds, copies included; None without experts."""
        return None if self.routing is None else int(self.routing.placement.slots.shape[2])

    def choice(self, part: MixtureOfExperts) -> Choice:
        """What a token chooses of *part*; groups of experts that were moved are not known any more."""
        return Choice(part.top_k, part.groups, part.best_groups) if self.in_order else Choice(part.top_k)

    @property
    def shard_bytes(self) -> int:
        """Bytes of an element of a trained parameter's shard under FSDP: of bf16 where master weights are elsewhere."""
        return 2 if self.zero == 3 and self.offload.optimizer else self.optimizer.stored_bytes

    @property
    def fsdp2(self) -> bool:
        """Whether PyTorch's FSDP2 shards: not Megatron-FSDP, nor DeepSpeed, whose host has the optimizer."""
        return self.zero == 3 and not self.megatron_fsdp and not self.offload.optimizer

    @property
    def gathered_bytes(self) -> int:
        """Bytes of an element of a parameter on its way between ranks, at least."""
        float8 = self.workload.float8
        return 1 if float8 is not None and float8.gathered else 2

    @property
    def stack(self) -> Stack:
        """What decides how its layers run again: Megatron-LM's way under its optimizer, whoever runs operators."""
        megatron = self.zero == 1 or self.megatron_fsdp
        return Stack(not megatron, self.workload.execution == "compiled", self.mesh.ep > 1)

    @property
    def own_architecture(self) -> Architecture:
        """The model as one rank of each tensor-parallel group holds it."""
        return share_model(self.architecture, self.mesh.tp, self.mesh.etp)

    def chunks_of(self, stage: int) -> tuple[tuple[Layer, ...], ...]:
        """The layers of each chunk of a pipeline stage."""
        layers, pipeline = self.architecture.layers, self.pipeline
        edges = pipeline.edges(len(layers))
        numbers = (pipeline.virtual(stage, chunk) for chunk in range(pipeline.chunks))
        return tuple(layers[edges[number] : edges[number + 1]] for number in numbers)

    def layers_of(self, stage: int) -> tuple[Layer, ...]:
        """The layers of a pipeline stage, chunk after chunk."""
        return tuple(layer for chunk in self.chunks_of(stage) for layer in chunk)

    def positions_of(self, stage: int) -> tuple[int, ...]:
        """Of each layer of a pipeline stage within its chunk; modules go on from the last chunk's layers."""
        chunks = self.chunks_of(stage)
        last = next((n for n in range(len(chunks)) if self.pipeline.is_last(stage, n)), 0)
        modules = range(len(chunks[last]), len(chunks[last]) + len(self.modules_of(stage)))
        return (*(position for chunk in chunks for position in range(len(chunk))), *modules)

    def swap_of(self, stage: int) -> Swap:
        """What *stage* swaps."""
        return self.swaps[min(stage, len(self.swaps) - 1)] if self.swaps else Swap()

    def recompute_of(self, layer: Layer, position: int, stage: int) -> Recompute:
        """What of *layer* of *stage*, at its *position* in its chunk, is computed again; prediction modules are not
        swapped.
        """
        recompute, swap = self.recompute.of_layer(position), self.swap_of(stage)
        if not swap or layer.index >= len(self.architecture.layers):
            return recompute
        counted = self.layers_of(stage) if len(self.swaps) > 1 else self.architecture.layers
        makes = [replace(each, index=0) for each in counted[: counted.index(layer) + 1]]
        return swap.placed(recompute, ordinals(makes)[-1])

    def modules_of(self, stage: int) -> tuple[tuple[Layer, ...], ...]:
        """The layers of each multi-token-prediction module of a stage: all are where the model ends."""
        return self.architecture.mtp_modules() if self.pipeline.ends(stage) else ()
