"""Ways of data parallelism: all of them answer the same calls of the stage's writer. One for each value of `zero`.

0 is PyTorch's DDP, 1 Megatron-LM's distributed optimizer, 2 DeepSpeed's ZeRO-2, 3 FSDP2 or Megatron-FSDP.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Protocol

from simulator.engine.task import Allocation
from simulator.model.operators import embedding
from simulator.program.costs import Costs
from simulator.program.ddp import Ddp
from simulator.program.drives import Drives
from simulator.program.emitter import Emitter
from simulator.program.fsdp import Fsdp
from simulator.program.host_memory import HostMemory
from simulator.program.host_shards import HostShards
from simulator.program.job import Job
from simulator.program.layout import Layout
from simulator.program.megatron_fsdp import MegatronFsdp
from simulator.program.network import Network
from simulator.program.pipeline import Pipeline
from simulator.program.pipelined_fsdp import PipelinedFsdp
from simulator.program.rebuilt import Rebuilt
from simulator.program.stage_operators import StageOperators
from simulator.program.unit import Unit
from simulator.program.zero1 import Zero1
from simulator.program.zero1_overlap import ALONE, Overlap, bucket_elements, buckets
from simulator.program.zero2 import Zero2


class DataParallel(Protocol):
    """Writes what data parallelism adds to a program."""

    def gather(self, unit: Unit) -> None:
        """Begin to gather the parameters of *unit*."""

    def unshard(self, unit: Unit, *, keep_buffers: bool) -> None:
        """Have the parameters of *unit* whole."""

    def reshard(self, unit: Unit) -> None:
        """Give up the whole parameters of *unit*."""

    def gradients(self, unit: Unit, weights: tuple[str, ...]) -> list[Allocation]:
        """What the gradients of *weights* take."""

    def reduce(self, unit: Unit, /) -> None:
        """Deal with the gradients of *unit*, which are complete."""

    def finish_forward(self) -> None:
        """End a forward pass."""

    def finish_backward(self) -> None:
        """End a backward pass."""

    def before_update(self) -> None:
        """Prepare the gradients for the optimizer."""

    def after_update(self) -> None:
        """Spread the new parameters and free the gradients."""

    def rebuilt(self, resident: Iterable[Allocation], /) -> Rebuilt | None:
        """What of *resident* memory the second step makes anew, once all tasks are written."""


def data_parallel(
    job: Job,
    emitter: Emitter,
    costs: Costs,
    network: Network,
    layout: Layout,
    operators: StageOperators,
    host: HostMemory,
    drives: Drives | None,
    micro_batches: int,
    stage: int = 0,
) -> DataParallel:
    """The way of *job* for a program of *micro_batches* of a *stage*."""
    stored, late = job.optimizer.stored_bytes, frozenset({embedding.WEIGHT})
    if job.zero == 0:
        return Ddp(emitter, costs, network, job.buckets, late=late, micro_batches=micro_batches)
    if job.zero == 1:
        return Zero1(
            emitter,
            costs,
            network,
            layout,
            reduce_bytes=job.reduce_bytes,
            stored_bytes=stored,
            made=operators.made_gradients(),
            averaged=job.mesh.dp_replicate * job.mesh.fsdp > 1,
            casts=operators.weight_casts(),
            copies=_copies(job.pipeline, stage),
            overlap=_overlap(job, layout, stage, late),
            micro_batches=micro_batches,
        )
    if job.zero == 2:
        sizes = [share.elements for group in layout.groups for share in group.trained]
        trained, largest, ranks = sum(sizes), max(sizes, default=0), job.mesh.fsdp
        return Zero2(
            emitter,
            costs,
            network,
            job.buckets,
            late=late,
            trained=trained,
            largest=largest,
            ranks=ranks,
            host=host,
            offload=job.offload,
            micro_batches=micro_batches,
        )
    scaled = [share.shard for group in layout.groups for share in group.trained if share.width == 1]
    if job.megatron_fsdp:
        return MegatronFsdp(
            emitter,
            costs,
            network,
            stored_bytes=job.shard_bytes,
            reduce_bytes=job.reduce_bytes,
            scaled_shards=scaled,
            layout=layout,
            made=operators.made_gradients(),
        )
    fully_sharded = PipelinedFsdp if job.pipeline.stages > 1 else Fsdp
    return fully_sharded(
        emitter,
        costs,
        network,
        stored_bytes=job.shard_bytes,
        reduce_bytes=job.reduce_bytes,
        scaled_shards=scaled,
        post_forward_ranks=job.mesh.post_forward,
        host=_host_shards(job, emitter, host, drives, micro_batches),
    )


def _copies(pipeline: Pipeline, stage: int) -> tuple[int, int] | None:
    """The two stages that hold the layers of *stage*, the lower one first."""
    if not pipeline.mirrored:
        return None
    low, high = sorted((stage, pipeline.mirror(stage)))
    return low, high


def _overlap(job: Job, layout: Layout, stage: int, late: Set[str]) -> Overlap:
    """What of Megatron-LM's distributed optimizer runs beside the passes of *stage*."""
    asked, limit = job.distributed_optimizer, bucket_elements(job.mesh.dp_replicate * job.mesh.fsdp)
    if not asked.overlaps_reductions:
        return ALONE
    chunks, first = _chunks(job, layout, stage), stage == 0
    cut = frozenset(unit.name for unit in chunks[0]) if first else frozenset()
    gathered = tuple(buckets(chunks, limit, cut=first)) if asked.overlaps_gathers else None
    return Overlap(cut, gathered, limit, late)


def _chunks(job: Job, layout: Layout, stage: int) -> list[list[Unit]]:
    """The units of each chunk; the ends of the model with the first chunk that has one of them."""
    layers, chunks = iter(layout.layers), []
    for number, chunk in enumerate(job.chunks_of(stage)):
        units = [next(layers) for _ in chunk]
        if job.pipeline.is_last(stage, number):
            units += [next(layers) for _ in job.modules_of(stage)]
        if job.pipeline.is_first(stage, number) and layout.vision:
            units.insert(0, layout.vision)
        chunks.append(units)
    ends = [number for number in range(len(chunks)) if _has_end(job.pipeline, stage, number)]
    if ends:
        chunks[ends[0]].insert(0, layout.root)
    return chunks


def _has_end(pipeline: Pipeline, stage: int, chunk: int) -> bool:
    return pipeline.is_first(stage, chunk) or pipeline.is_last(stage, chunk)


def _host_shards(
    job: Job, emitter: Emitter, host: HostMemory, drives: Drives | None, micro_batches: int
) -> HostShards | None:
    """What brings shards from host memory or takes them there, where a job has any there."""
    if not job.offload.updated_on_host:
        return None
    return HostShards(
        emitter,
        host,
        drives,
        job.offload,
        frozen_bytes=job.frozen_bytes,
        stored_bytes=job.shard_bytes,
        micro_batches=micro_batches,
    )
