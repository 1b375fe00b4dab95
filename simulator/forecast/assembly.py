"""From a scenario to a job: files looked up, degrees checked against model and hardware, every problem told at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from simulator.forecast.attention import attention_problems
from simulator.forecast.core_kernels import core_kernel_problems
from simulator.forecast.cuda_graphs import graph_problems
from simulator.forecast.errors import Refused
from simulator.forecast.exchange_parts import exchange_part_problems
from simulator.forecast.exchanging import exchange_problems, too_many_tokens
from simulator.forecast.expert_routing import ExpertRouting
from simulator.forecast.float8 import float8, float8_problems, transformer_engine_problems
from simulator.forecast.image_batches import ImageBatches, image_problems
from simulator.forecast.memory_nodes import memory_node_problems
from simulator.forecast.offloading import node_problems, offload_of, offload_problems
from simulator.forecast.packing import documents, packing_problems, sequence_lengths
from simulator.forecast.pipelining import pipeline_of, pipeline_problems, schedule_of
from simulator.forecast.recomputation import recompute_of, recompute_problems
from simulator.forecast.scenario import ChunkedLoss, Scenario, Training
from simulator.forecast.scenario import Cluster as Machines
from simulator.forecast.sharding_problems import sharding_problems
from simulator.forecast.swap_schedule import schedule
from simulator.forecast.swapping import swap_problems, swappable, swaps_of
from simulator.forecast.tensor_overlap import tensor_overlap_problems
from simulator.hardware.cluster import Cluster, segmented
from simulator.hardware.degraded import degrade
from simulator.hardware.library import build_cluster, load_fabric, load_node
from simulator.hardware.pooled import pooled
from simulator.hardware.staging import staged
from simulator.model.architecture import Architecture
from simulator.model.config import read_architecture
from simulator.model.context import context_problems
from simulator.model.operator import Workload
from simulator.model.parameters import layer_parameters
from simulator.model.split import split_problems
from simulator.parallel.folding import Folding, apart, fold
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import members_within
from simulator.program.batch import BatchWay
from simulator.program.buckets import Buckets
from simulator.program.exchanges import exchanges
from simulator.program.job import Job
from simulator.program.micro_batch import MicroBatch
from simulator.program.optimizer import Optimizer
from simulator.program.trained import Trained
from simulator.program.zero1_overlap import DistributedOptimizer
from simulator.routing.outcome import Lengths, Outcome
from simulator.routing.policies import plans, policy_names
from simulator.shipped import locate

_COMPOSING = ("data_sampling", "micro_batch_scheduling")
"""Policies that deal sequences to ranks and micro-batches."""
BYTES = {"fp32": 4, "bf16": 2}
TENSOR_BY_TENSOR = ("adamw_8bit",)
"""Optimizers that find no tensors in a flat buffer."""
_PLAIN_MOMENTS = ("adamw", "muon")
"""Optimizers whose moments are in a format of choice."""


def assemble_job(scenario: Scenario, folder: Path, *, folded: bool = True) -> Job:
    """The job that *scenario* describes; names in it are looked up from *folder*.

    Raise :exc:`Refused` with everything that does not go together, and what the readers of the files raise.
    """
    architecture = find_architecture(scenario.model, folder)
    refused = list(_prediction_problems(scenario.training.multi_token_prediction, architecture))
    architecture = replace(architecture, mtp_layers=scenario.training.multi_token_prediction)
    cluster = find_cluster(scenario.cluster, folder)
    problems = refused or [
        *_problems(scenario, architecture),
        *attention_problems(scenario, architecture, cluster.accelerator),
        *_transfer_problems(scenario, architecture, cluster),
        *graph_problems(scenario, architecture, cluster.accelerator),
        *_router_problems(scenario, architecture),
        *_dispatch_problems(scenario),
        *transformer_engine_problems(scenario.training),
        *float8_problems(scenario, architecture, cluster.accelerator),
        *node_problems(
            offload_of(scenario.training), cluster.node, min(cluster.accelerators, cluster.node.accelerators)
        ),
    ]
    if problems:
        raise Refused(problems)
    split, training = scenario.parallel, scenario.training
    degrees = split.dp_replicate, split.dp_shard, split.ep, split.tp, split.cp, split.pp, split.etp
    kept = training.fsdp.reshard_after_forward
    mesh = Mesh(*degrees, post_forward=1 if isinstance(kept, bool) or training.zero != 3 else kept)
    workload = _workload(scenario)
    if problems := list(too_many_tokens(training.exchange, workload.sent_tokens)):
        raise Refused(problems)
    routing = _routing(scenario, architecture, folder, workload.sent_tokens, cluster.node.accelerators)
    batches = tuple(_micro_batches(scenario, architecture, mesh, routing))
    job = Job(
        architecture=architecture,
        cluster=cluster,
        mesh=mesh,
        folding=_folding(mesh, cluster, batches) if folded else apart(mesh.groups(), mesh.stage_ranks),
        workload=replace(workload, padded_experts=routing is not None and routing.padded),
        trained=_trained(training),
        optimizer=_optimizer(training),
        zero=training.zero,
        schedule=schedule_of(training.pipeline_schedule, split.virtual_pipeline, overlaps=training.overlap_exchanges),
        pipeline=pipeline_of(scenario),
        weaves=training.overlap_exchanges,
        fills=training.delay_weight_gradients,
        frozen_bytes=BYTES["bf16"],
        buckets=_buckets(training),
        distributed_optimizer=_distributed_optimizer(training),
        batch=_batch(training),
        reduce_bytes=_reduce_bytes(training),
        megatron_fsdp=training.megatron_fsdp,
        reshard_after_forward=bool(training.fsdp.reshard_after_forward),
        made_whole=training.fsdp.made == "whole",
        prefetch=training.fsdp.prefetch,
        together=training.fsdp.micro_batches_per_gather,
        recompute=recompute_of(training),
        loss="chunked" if isinstance(training.loss, ChunkedLoss) else training.loss,
        exchange=training.exchange,
        exchange_parts=training.exchange_parts,
        per_expert=workload.megatron if training.grouped_gemm is None else training.grouped_gemm == "per_expert",
        in_order=scenario.routing.policy is None,
        cuda_graphs=frozenset(training.cuda_graphs),
        routing=routing,
        offload=offload_of(training),
        swaps=swaps_of(training),
        micro_batches=batches,
    )
    if training.swap == "auto":
        return replace(job, swaps=schedule(job, swappable(architecture, training), passes(scenario)))
    return job


def _workload(scenario: Scenario) -> Workload:
    split, training = scenario.parallel, scenario.training
    eight_bit_rows = training.float8 is not None and training.float8.dispatch
    return Workload(
        sequence_lengths(training),
        execution=training.execution,
        attention=training.attention,
        core_kernels=training.core_kernels,
        dropout=training.dropout,
        sequence_parallel=training.sequence_parallel,
        overlap=training.overlap_tensor_parallel,
        float8=float8(scenario),
        tp=split.tp,
        cp=split.cp,
        context=training.context_parallel,
        etp=split.etp,
        megatron=training.megatron_stack,
        spread_experts=split.ep > 1,
        # Megatron-LM's dispatcher sends no rows in fp8: a stack that does is another.
        sent_once=training.megatron_stack
        and split.ep > 1
        and exchanges()[training.exchange].once
        and not eight_bit_rows,
        framework_table=not training.dispatch_fusion,
        fused_router=training.router_fusion,
        fused_experts=training.grouped_gemm == "fused",
        loss_chunk_tokens=(training.loss if isinstance(training.loss, ChunkedLoss) else ChunkedLoss()).chunk_tokens,
    )


def _transfer_problems(scenario: Scenario, architecture: Architecture, cluster: Cluster) -> Iterator[str]:
    yield from exchange_problems(scenario, architecture, cluster)
    yield from tensor_overlap_problems(scenario, architecture, cluster)


def _dispatch_problems(scenario: Scenario) -> Iterator[str]:
    training = scenario.training
    if training.dispatch_fusion:
        return
    where = "training.dispatch_fusion: found false"
    if not (training.megatron_stack and scenario.parallel.ep > 1 and exchanges()[training.exchange].once):
        yield f"{where}, which is about Megatron-LM's experts over DeepEP: exchange hierarchical or deduplicated"
    if "full_iteration" in training.cuda_graphs:
        yield f"{where}, whose host reads numbers that no graph tells it; leave out cuda_graphs: full_iteration"


def _router_problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    if not scenario.training.router_fusion:
        return
    where = "training.router_fusion: found true"
    if not scenario.training.megatron_stack:
        yield f"{where}, but layers are not Megatron-LM's; allowed: execution fused with zero 1, or Megatron-FSDP"
    if next(iter(architecture.moe_layers()), None) is None:
        yield f"{where}, but {architecture.model_type} has no routed experts; leave it out"


def micro_batches(scenario: Scenario) -> int:
    """Micro-batches of one step on each rank."""
    ranks = scenario.parallel.dp_replicate * scenario.parallel.dp_shard
    return scenario.training.global_batch_sequences // (ranks * scenario.training.micro_batch_sequences)


def passes(scenario: Scenario) -> int:
    """Micro-batches of one step on each rank, those that go through the layers together counted as one."""
    return micro_batches(scenario) // scenario.training.fsdp.micro_batches_per_gather


def find_architecture(name: str, folder: Path) -> Architecture:
    """The model that *name* means: a config.json by path, or a shipped one by name."""
    try:
        path = locate(name, kind="model", folder=folder, shipped_in=("scenarios", "models"), suffixes=(".json",))
    except FileNotFoundError as error:
        raise Refused([f"model: {error}"]) from None
    return read_architecture(path)


def find_cluster(asked: Machines, folder: Path) -> Cluster:
    """The machines that a scenario names, what is broken of them among them.

    Raise :exc:`Refused` for what does not exist.
    """
    problems = []
    for name, value, load in (("node", asked.node, load_node), ("fabric", asked.fabric, load_fabric)):
        try:
            load(value, folder)
        except FileNotFoundError as error:
            problems.append(f"cluster.{name}: {error}")
    if problems:
        raise Refused(problems)
    try:
        whole = build_cluster(asked.node, asked.fabric, asked.accelerators, folder)
    except ValueError as error:
        raise Refused([f"cluster.accelerators: {error}"]) from None
    try:
        whole = segmented(whole, asked.segment_nodes) if asked.segment_nodes else whole
    except ValueError as error:
        raise Refused([f"cluster.segment_nodes: {error}"]) from None
    try:
        left = degrade(whole, ill.links, ill.dead_rails, ill.slow_nodes) if (ill := asked.degraded) else whole
    except ValueError as error:
        raise Refused([f"cluster.degraded.{error}"]) from None
    try:
        left = left if asked.gpu_direct else staged(left)
    except ValueError as error:
        raise Refused([f"cluster.gpu_direct: {error}"]) from None
    try:
        return pooled(left, asked.memory_nodes) if asked.memory_nodes else left
    except ValueError as error:
        raise Refused([f"cluster.memory_nodes: {error}"]) from None


def _folding(mesh: Mesh, cluster: Cluster, batches: Iterable[MicroBatch]) -> Folding:
    """Ranks of a stage are told apart by their experts, by what they bring to micro-batches, by their pace and how
    their groups lie around them.
    """
    sizes = [level.size for level in cluster.levels]
    features = [mesh.expert_rank(), *(feature for batch in batches for feature in batch.features(mesh))]
    for stage in range(mesh.pp):
        paces = cluster.pace(stage * mesh.stage_ranks + np.arange(mesh.stage_ranks))
        features.append(np.unique(paces, return_inverse=True)[1])
        for group in mesh.groups().values():
            features.extend(members_within(group, sizes, stage * mesh.stage_ranks))
    return fold(np.stack(features, axis=1), mesh.groups())


def _optimizer(training: Training) -> Optimizer:
    asked = training.optimizer
    stored = BYTES["fp32" if asked.master_weights else "bf16"]
    moment = BYTES[asked.state_dtype] if asked.name in _PLAIN_MOMENTS else 0
    return Optimizer(asked.name, stored, moment, foreach=asked.implementation == "foreach")


def _reduce_bytes(training: Training) -> int:
    """Of an element of a gradient while it is summed; DeepSpeed sums in bf16."""
    deepspeed = training.zero == 2 or (training.zero == 3 and training.offload.optimizer)
    return BYTES[training.fsdp.reduce_dtype] if training.zero in (1, 3) and not deepspeed else BYTES["bf16"]


def _buckets(training: Training) -> Buckets:
    if training.zero == 2:
        size = training.deepspeed.reduce_bucket_elements * BYTES["bf16"]
        return Buckets(float(size), overlap=training.deepspeed.overlap_comm)
    return Buckets(float(training.ddp.bucket_bytes), views=training.ddp.gradient_as_bucket_view)


def _distributed_optimizer(training: Training) -> DistributedOptimizer:
    asked = training.megatron
    return DistributedOptimizer(
        asked.gradient_accumulation_fusion, asked.overlap_grad_reduce, asked.overlap_param_gather
    )


def _batch(training: Training) -> BatchWay:
    """Megatron-LM's; elsewhere every rank reads its own, without a mask."""
    asked, megatron = training.megatron, training.megatron_sharding
    return BatchWay(broadcast=megatron and asked.broadcast_batch, mask=megatron and asked.attention_mask)


def _trained(training: Training) -> Trained:
    if training.lora is None:
        frozen = training.images.frozen if training.images else ()
        return Trained(frozen_roles=frozenset({"tower": "vision"}.get(part, part) for part in frozen))
    return Trained(training.lora.rank, frozenset(training.lora.targets))


def _routing(
    scenario: Scenario, architecture: Architecture, folder: Path, tokens: int, ranks_per_node: int
) -> Outcome | None:
    """What each expert slot receives in a micro-batch, under the scenario's policy; None without experts."""
    if next(iter(architecture.moe_layers()), None) is None:
        return None
    experts = ExpertRouting(scenario, architecture, folder, ranks_per_node)
    return experts.outcome(scenario.parallel.ep, tokens, micro_batches(scenario))


def _micro_batches(
    scenario: Scenario, architecture: Architecture, mesh: Mesh, routing: Outcome | None
) -> Iterator[MicroBatch]:
    """The unlike micro-batches of a step."""
    training, images = scenario.training, None
    batches = ImageBatches(scenario, architecture) if training.images is not None else None
    if batches is not None:
        images = batches.load(mesh.data_parallel, training.micro_batch_sequences)
    if routing is None:
        yield MicroBatch(images=images)
        return
    place = mesh.expert_rank()[:: mesh.tp * mesh.cp]
    for number, rows in enumerate(routing.rows):
        lengths = routing.lengths[number] if routing.lengths else ()
        if batches is not None and routing.source_patches is not None:
            images = batches.dealt(routing.source_patches[number][place])
        yield MicroBatch(rows, routing.destinations, _unless_alike(lengths, training), images)


def _unless_alike(lengths: Lengths, training: Training) -> Lengths:
    """What attends to itself on every rank, longest first; nothing where all ranks have what *training* says."""
    packed = [[part for length in one for part in documents(training, length)] for one in lengths]
    ordered = tuple(tuple(sorted(one, reverse=True)) for one in packed)
    usual = tuple(sorted(sequence_lengths(training), reverse=True))
    return () if set(ordered) == {usual} else ordered


def _problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    yield from _expert_problems(scenario, architecture)
    yield from exchange_part_problems(scenario)
    yield from memory_node_problems(scenario)
    yield from _lora_problems(scenario, architecture)
    yield from core_kernel_problems(scenario, architecture)
    yield from image_problems(scenario, architecture)
    yield from packing_problems(scenario)
    yield from recompute_problems(scenario, architecture)
    yield from _sequence_problems(scenario, architecture)
    split = scenario.parallel
    lengths = (scenario.training.sequence_length,)
    yield from (f"parallel: {told}" for told in split_problems(architecture, split.tp, split.cp, split.etp, lengths))
    way = scenario.training.context_parallel
    told = context_problems(architecture, way, split.tp, split.cp)
    yield from (f"training.context_parallel: {problem}" for problem in told)
    yield from pipeline_problems(scenario, len(architecture.layers))
    training = scenario.training
    longest = architecture.max_positions
    if longest and training.sequence_length > longest:
        yield f"training.sequence_length: found {training.sequence_length}, the model takes at most {longest} positions"
    yield from _optimizer_problems(training)
    yield from sharding_problems(scenario)
    yield from offload_problems(scenario)
    yield from swap_problems(scenario, architecture)


def _sequence_problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    told, policy = scenario.training.sequences, scenario.routing.policy
    if policy is not None and policy.name in _COMPOSING and told is None:
        yield (
            f"routing.policy.name: found {policy.name}, which deals sequences to ranks and micro-batches, and all are "
            "alike; allowed: training.sequences beside it, or another policy"
        )
    if policy is not None and policy.name in policy_names() and not plans(policy.name):
        for field in ("planned_on", "replan_every"):
            if getattr(policy, field) is not None:
                yield f"routing.policy.{field}: {policy.name} makes no plan that could age; leave it out"
    if told is not None and next(iter(architecture.moe_layers()), None) is None:
        yield f"training.sequences: {architecture.model_type} has no routed experts; leave it out"


def _optimizer_problems(training: Training) -> Iterator[str]:
    optimizer, asked = training.optimizer, training.optimizer.model_fields_set
    if optimizer.name not in _PLAIN_MOMENTS and "state_dtype" in asked:
        kept = "keeps no moments" if optimizer.name == "sgd" else "keeps moments of one byte"
        yield f"training.optimizer.state_dtype: {optimizer.name} {kept}; leave it out"
    if optimizer.name != "adamw" and "implementation" in asked:
        yield f"training.optimizer.implementation: {optimizer.name} comes in one way; leave it out"
    if optimizer.name in TENSOR_BY_TENSOR and training.zero == 1:
        yield (
            f"training.optimizer.name: found {optimizer.name}, which works tensor by tensor, and zero 1 cuts its "
            "shares out of one buffer of all tensors; allowed: zero 3"
        )


def _expert_problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    counts = {layer.feed_forward.experts for layer in architecture.moe_layers()}  # type: ignore[union-attr]
    ep, routing = scenario.parallel.ep, scenario.routing
    if not counts:
        if ep > 1:
            yield f"parallel.ep: found {ep}, but {architecture.model_type} has no routed experts; allowed: 1"
        for name in ("trace", "synthetic", "workload", "policy"):
            if getattr(routing, name) is not None:
                yield f"routing.{name}: {architecture.model_type} has no routed experts to route to; leave it out"
    if len(counts) > 1:
        yield f"model: layers with different expert counts ({sorted(counts)}) are not simulated yet"
    for experts in counts:
        if experts % ep:
            near = [d for d in range(1, experts + 1) if experts % d == 0 and scenario.parallel.dp_shard % d == 0]
            closest = sorted(near, key=lambda d: abs(d - ep))[:2]
            yield (
                f"parallel.ep: found {ep}, which does not divide the model's {experts} experts; "
                f"nearest: {' or '.join(map(str, sorted(closest)))}"
            )


def _prediction_problems(asked: int, architecture: Architecture) -> Iterator[str]:
    """What rules out *asked* multi-token-prediction modules."""
    where, model, has = "training.multi_token_prediction", architecture.model_type, architecture.mtp_layers
    if asked > has:
        allowed = f"0 to {has}" if has else "0"
        yield f"{where}: found {asked}, but {model}'s config.json has {has} such modules; allowed: {allowed}"
    elif asked and any(layer.hyper_connections > 1 or layer.residual_blocks for layer in architecture.layers):
        yield (
            f"{where}: {model} has parallel or mixed residual streams, and how its module joins them is not "
            "simulated; allowed: 0"
        )


def _lora_problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    lora = scenario.training.lora
    if lora is None:
        return
    roles = {p.role for layer in architecture.layers for p in layer_parameters(architecture, layer)}
    for target in lora.targets:
        if target not in roles:
            known = sorted(roles & {"attention", "mlp", "shared_expert", "latent", "routed_expert"})
            yield f"training.lora.targets: {architecture.model_type} has no {target} weights; it has {', '.join(known)}"
