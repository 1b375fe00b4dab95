"""The layout of a stage's weights: how data parallelism groups them, and what every rank keeps for good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from simulator.engine.task import Allocation
from simulator.model.architecture import Architecture
from simulator.model.float8 import takes_part
from simulator.model.operators import embedding
from simulator.model.parameter import Parameter
from simulator.model.parameters import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_module_parameters,
    token_parameters,
    vision_parameters,
)
from simulator.parallel.sharding import ShardGroup, Share, shard_group
from simulator.program.ddp import BUCKETS, bucket_sizes
from simulator.program.drive_layout import drive_born, drive_resident
from simulator.program.emitter import tensors
from simulator.program.fsdp import COMPUTE_BYTES
from simulator.program.host_memory import host_memory, pinned
from simulator.program.host_update import FP32_BYTES
from simulator.program.job import Job
from simulator.program.optimizers import rules
from simulator.program.ownership import ownership
from simulator.program.unit import Unit
from simulator.program.update import Ownership, share_out
from simulator.program.zenflow import moments

ROOT = "root"
"""Name of the unit of both ends of the model."""
EXPERT_DIMS = 3
"""Dims of an expert matrix: experts, in, out. Biases have one less."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The units of a stage."""

    layers: tuple[Unit, ...]
    """Layers, and multi-token-prediction modules behind them."""
    root: Unit
    """Embedding, final norm and head, as far as the stage has them: kept gathered over a micro-batch."""
    vision: Unit | None
    """The vision tower with its projector, on the first stage; a batch without images never gathers it."""
    resident: tuple[Allocation, ...]
    """What one rank holds from the start."""
    born: tuple[Allocation, ...]
    """What the first update adds for good: the optimizer's moments."""
    ownership: Ownership
    """What one rank updates."""
    on_card: Ownership
    """What of that its card updates ..."""
    on_host: Ownership
    """... and what the cores of its host."""
    copied_elements: int
    """Trained elements of its layers that every tp rank holds whole: their gradients are summed over tp."""

    @property
    def groups(self) -> tuple[ShardGroup, ...]:
        """All groups."""
        units = (*self.layers, self.root, *((self.vision,) if self.vision else ()))
        return tuple(group for unit in units for group in unit.groups)

    @property
    def trained_tensors(self) -> int:
        """Tensors that are trained."""
        return sum(len(group.trained) for group in self.groups)


def lay_out(job: Job, stage: int) -> Layout:
    """Group the weights of *stage* as `fully_shard` on each layer, its experts and the root does."""
    own = job.own_architecture
    ends = _end_parameters(job, own, stage)
    weights = {
        name: _held(job, parameters) for name, parameters in _layer_weights(job, own, stage, job.mesh.tp).items()
    }
    layers = tuple(_layer_unit(job, name, held) for name, held in weights.items())
    root = Unit(ROOT, (_group(job, ROOT, ends),) if ends else (), _made_by(job, ROOT, ends))
    held = vision_parameters(job.architecture) if job.pipeline.begins(stage) else ()
    vision = Unit("vision", (_group(job, "vision", held),), _made_by(job, "vision", held)) if held else None
    units = (*layers, root, *((vision,) if vision else ()))
    groups = tuple(group for unit in units for group in unit.groups)
    owned = ownership(job, groups)
    on_card, on_host = share_out(owned, job.offload.updated_on_host)
    resident = tuple(_kept(_resident(job, groups, on_card if job.zero == 2 else owned)))
    born = tuple(_kept({("moments", "optimizer"): [*_moments(job, on_card), *_chosen_moments(job, groups)]}))
    way = job.offload.drives
    hosted = host_resident(job, groups, on_host) if way is None else drive_resident(job, way, units, on_host)
    twice = 2 if job.offload.lags else 1
    hosted_moments = _hosted({("moments on host", "optimizer"): _moments(job, on_host) * twice})
    away = hosted_moments if way is None else drive_born(job, way, on_host)
    return Layout(
        layers,
        root,
        vision,
        (*resident, *_held_bytes(hosted)),
        (*born, *_held_bytes(away)),
        owned,
        on_card,
        on_host,
        _copied(job, stage, weights),
    )


def _layer_weights(job: Job, model: Architecture, stage: int, tp: int) -> dict[str, tuple[Parameter, ...]]:
    """Weights of the stage's layers and modules by the name of their unit, as one of *tp* ranks holds *model*."""
    layers = {
        f"layer {layer.index}": layer_parameters(model, model.layers[layer.index]) for layer in job.layers_of(stage)
    }
    module = mtp_module_parameters(model, tp) if job.modules_of(stage) else ()
    return layers | {f"prediction module {number}": module for number in range(len(job.modules_of(stage)))}


def _held(job: Job, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """*parameters* with as many experts as all slots of the ep ranks hold, copies counted."""
    slots = job.expert_slots
    return tuple(
        replace(p, shape=(slots * job.mesh.ep, *p.shape[1:])) if p.role == "routed_expert" and slots else p
        for p in parameters
    )


def _layer_unit(job: Job, name: str, weights: tuple[Parameter, ...]) -> Unit:
    groups = [_group(job, name, [p for p in weights if p.role != "routed_expert"], partial(_width, job))]
    experts = [p for p in weights if p.role == "routed_expert"]
    if experts:
        frozen, learnt = job.trained.split(experts)
        held = shard_group(
            f"{name} experts", "efsdp", job.mesh.efsdp, frozen, learnt, ep=job.mesh.ep, width=partial(_width, job)
        )
        groups.append(held)
    return Unit(name, tuple(groups), _made_by(job, name, weights))


def _group(
    job: Job, name: str, parameters: Iterable[Parameter], width: Callable[[Parameter], int] = lambda _: COMPUTE_BYTES
) -> ShardGroup:
    frozen, learnt = job.trained.split(parameters)
    return shard_group(name, "dp_shard", job.mesh.fsdp, frozen, learnt, width=width)


def _width(job: Job, parameter: Parameter) -> int:
    """Bytes of an element of a layer's *parameter* on its way between ranks.

    torchao gathers the weights of dense linear layers in fp8, Megatron-LM those of its experts as well.
    """
    float8 = job.workload.float8
    if float8 is None or not float8.gathered:
        return COMPUTE_BYTES
    expert = parameter.role == "routed_expert" and len(parameter.shape) == EXPERT_DIMS
    return 1 if takes_part(parameter) or (expert and float8.kept and float8.experts) else COMPUTE_BYTES


def _made_by(job: Job, name: str, weights: Iterable[Parameter]) -> dict[str, tuple[str, int]]:
    """For each weight, the group that its gradient belongs to and how many elements that has."""
    return {
        p.name: (
            f"{name} experts" if p.role == "routed_expert" else name,
            job.trained.elements(p, job.mesh.ep) * _whole_gradient(job, p),
        )
        for p in weights
    }


def _whole_gradient(job: Job, parameter: Parameter) -> int:
    """How many times as large a gradient is as its weight on the rank.

    DTensor makes the gradient of an embedding that tp ranks share whole on each, and takes the rank's rows of it later
    (allocator trace, torch 2.11); Megatron-LM's layer makes that of its own rows. The gradient of a table that is the
    head's matrix too begins with the head's rows, and is no larger.
    """
    whole = parameter.name == embedding.WEIGHT and not job.architecture.tied_embeddings
    return job.mesh.tp if whole and job.workload.execution != "fused" else 1


def _end_parameters(job: Job, model: Architecture, stage: int) -> list[Parameter]:
    """Weights of the ends of the model that *stage* has.

    Embeddings of tokens are on both ends of a pipeline where the head is tied to them or prediction modules read them.
    """
    first, last = job.pipeline.begins(stage), job.pipeline.ends(stage)
    again = last and (model.tied_embeddings or job.modules_of(stage))
    tables = embedding_parameters(model) if first else token_parameters(model) if again else ()
    return [*tables, *(head_parameters(model) if last else ())]


def _copied(job: Job, stage: int, held: dict[str, tuple[Parameter, ...]]) -> int:
    """Trained elements of tensors that are as large on a tp rank as in the whole model.

    Without sequence parallelism every tp rank has their whole gradient.
    """
    if job.mesh.tp == 1 or not job.workload.sequence_parallel:
        return 0
    whole = {
        (name, p.name): p.shape
        for name, parameters in _layer_weights(job, job.architecture, stage, 1).items()
        for p in parameters
    }
    return sum(
        job.trained.elements(p, job.mesh.ep)
        for name, parameters in held.items()
        for p in parameters
        if p.role != "routed_expert" and p.shape == whole[name, p.name]
    )


def _kept(sizes: dict[tuple[str, str], list[float]]) -> Iterator[Allocation]:
    """An allocation for each (name, kind) that has any bytes."""
    for (name, kind), tensor_bytes in sizes.items():
        if sum(tensor_bytes):
            yield tensors(f"resident.{name}", kind, tensor_bytes)


def _hosted(sizes: dict[tuple[str, str], list[float]]) -> Iterator[Allocation]:
    """The same in host memory."""
    for (name, kind), tensor_bytes in sizes.items():
        if sum(tensor_bytes):
            yield host_memory(f"resident.{name}", kind, tensor_bytes)


def _held_bytes(found: Iterable[Allocation]) -> Iterator[Allocation]:
    """Those of *found* that hold anything."""
    return (item for item in found if np.any(item.bytes))


def host_resident(job: Job, groups: tuple[ShardGroup, ...], on_host: Ownership) -> Iterator[Allocation]:
    """What a rank's process holds in host memory from the start.

    Megatron-LM pins a copy of the master weights and of their gradients, tensor by tensor. FSDP2 pins the shards of all
    parameters. DeepSpeed has the master weights in memory that is not pinned, and pins the share of the gradients
    whole, in bf16 and in fp32 (`pin_memory: true`); under ZeRO-2 it pins flat fp32 master weights and gradients, and a
    buffer of the largest tensor. Under ZenFlow, whose updates run in another process, it shares master weights, their
    copy and gradients of this and the last step with that, which unpins them.
    """
    sizes = [tensor.elements * FP32_BYTES for tensor in on_host.tensors]
    if job.offload.parameters:
        shards = [share.shard * job.frozen_bytes for group in groups for share in group.frozen]
        shards += [share.shard * job.optimizer.stored_bytes for group in groups for share in group.trained]
        yield pinned("resident.parameters on host", "parameters", [float(size) for size in shards])
    elif sizes and job.offload.lags:
        yield host_memory("resident.master weights on host", "optimizer", sizes * 2)
        yield host_memory("resident.gradients on host", "gradients", sizes * 2)
        yield pinned("resident.buffer of a gradient on host", "gradients", [_largest(groups) * COMPUTE_BYTES])
    elif sizes and job.zero == 2:
        yield pinned("resident.master weights on host", "optimizer", sizes)
        yield pinned("resident.gradients on host", "gradients", [*sizes, _largest(groups) * COMPUTE_BYTES])
    elif sizes and job.zero == 1:
        yield pinned("resident.master weights on host", "optimizer", sizes)
        yield pinned("resident.gradients on host", "gradients", sizes)
    elif sizes:
        yield host_memory("resident.master weights on host", "optimizer", sizes)
        yield pinned("resident.gradients on host", "gradients", [sum(sizes), sum(sizes) / 2])


def _resident(job: Job, groups: tuple[ShardGroup, ...], owned: Ownership) -> dict[tuple[str, str], list[float]]:
    """Bytes of each tensor that a rank holds from the start, by name and kind.

    FSDP2 keeps shards. The others keep bf16 parameters whole, in one flat tensor under ZeRO-2: DDP beside its buckets,
    ZeRO-1 beside its gradient buffer and shares of the master weights, ZeRO-2 beside its share of them.
    """
    frozen, trained = ([share for group in groups for share in getattr(group, name)] for name in ("frozen", "trained"))
    if job.offload.fetches:
        return {}
    if job.megatron_fsdp:
        return _megatron_shards(job, groups)
    if job.zero == 3:
        return {(f"parameters.{group.name}", "parameters"): tensor_bytes(job, group, whole=False) for group in groups}
    whole = [float(share.elements * job.frozen_bytes) for share in frozen]
    sizes = [float(share.elements * COMPUTE_BYTES) for share in trained]
    if job.zero == 0:
        arriving = [float(share.elements * COMPUTE_BYTES) for share in reversed(_in_model_order(groups))]
        buckets = bucket_sizes(arriving, job.buckets.bytes) if job.mesh.dp_replicate > 1 else []
        return {("parameters", "parameters"): [*whole, *sizes], (BUCKETS, "reduce buffers"): buckets}
    whole += [sum(sizes)] if job.zero == 2 else sizes
    master = job.optimizer.stored_bytes if job.optimizer.stored_bytes != COMPUTE_BYTES else 0
    return {
        ("parameters", "parameters"): whole,
        ("gradients", "gradients"): [sum(share.elements for share in trained) * job.reduce_bytes * (job.zero == 1)],
        ("master weights", "optimizer"): [tensor.elements * master for tensor in owned.tensors],
        ("buffer of a gradient", "reduce buffers"): [
            _largest(groups) * COMPUTE_BYTES * (job.zero == 2 and job.offload.optimizer > 0)
        ],
    }


def _largest(groups: Iterable[ShardGroup]) -> float:
    """Elements of the largest trained tensor."""
    return float(max((share.elements for group in groups for share in group.trained), default=0))


def _in_model_order(groups: Iterable[ShardGroup]) -> list[Share]:
    """Trained tensors from the embedding to the head, which are one group."""
    ends = [share for group in groups if group.name == ROOT for share in group.trained]
    return [*ends[:1], *(share for group in groups if group.name != ROOT for share in group.trained), *ends[1:]]


def _megatron_shards(job: Job, groups: tuple[ShardGroup, ...]) -> dict[tuple[str, str], list[float]]:
    """Flat shards of parameters, as they are gathered, and of gradients, beside master weights."""
    frozen, trained = [sum(getattr(group, name) for group in groups) for name in ("frozen_shard", "trained_shard")]
    master = job.optimizer.stored_bytes if job.optimizer.stored_bytes != COMPUTE_BYTES else 0
    gathered = sum(share.shard * share.width for group in groups for share in group.trained)
    return {
        ("parameters", "parameters"): [float(frozen * job.frozen_bytes + gathered)],
        ("gradients", "gradients"): [float(trained * job.reduce_bytes)],
        ("master weights", "optimizer"): [float(trained * master)],
    }


def tensor_bytes(job: Job, group: ShardGroup, *, whole: bool) -> list[float]:
    """Bytes of each tensor of *group* in the format that FSDP2 stores: *whole* ones, or the shards of a rank."""
    stored = [(share, job.frozen_bytes) for share in group.frozen]
    stored += [(share, job.shard_bytes) for share in group.trained]
    return [float((share.elements if whole else share.shard) * width) for share, width in stored]


def parameters_key(group: str) -> str:
    """Key of the shards of a group under FSDP2."""
    return f"resident.parameters.{group}"


def _chosen_moments(job: Job, groups: Iterable[ShardGroup]) -> list[float]:
    """Moments of what the card updates at once of every gradient."""
    zenflow = job.offload.zenflow
    trained = sum(share.elements for group in groups for share in group.trained)
    return [] if zenflow is None else moments(zenflow.chosen, float(trained))


def _moments(job: Job, owned: Ownership) -> list[float]:
    rule = rules()[job.optimizer.name]
    return [size for tensor in owned.tensors for size in rule.moments(tensor.elements, tensor.matrix, job.optimizer)]
