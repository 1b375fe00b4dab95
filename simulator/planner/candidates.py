"""Candidates: all splits of a scenario with their variants, and the job that what they have in common is priced for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.forecast.assembly import TENSOR_BY_TENSOR, assemble_job
from simulator.forecast.exchanging import too_many_tokens, way_problems
from simulator.forecast.fitting import changed
from simulator.forecast.float8 import gathers_as_megatron
from simulator.forecast.offloading import offload_of
from simulator.forecast.scenario import Scenario, Training
from simulator.forecast.tensor_overlap import knows_overlap
from simulator.planner.splits import (
    NO_OVERLAP,
    OPEN,
    OVERLAP,
    OVERLAP_WEIGHTS,
    OWN,
    RECOMPUTE,
    Split,
    Splits,
    enumerate_splits,
)
from simulator.planner.variants import Room, varied
from simulator.program.job import Job


def candidates(scenario: Scenario, job: Job) -> Splits:
    """All splits of *scenario*, of which *job* is one."""
    training = scenario.training
    plain = enumerate_splits(
        job.architecture,
        job.cluster,
        sequence_length=training.sequence_length,
        global_batch_sequences=training.global_batch_sequences,
        packed=training.document_length is not None,
        context=training.context_parallel,
        zeros=_zeros(training),
        own=job.recompute,
        own_sequences=training.micro_batch_sequences,
    )
    found = varied(plain.only(_stores(plain, training)), _room(scenario, job))
    # What every n-th layer of a stage keeps depends on where stages begin: those are shared evenly.
    anywhere = (found["recompute"] != OWN) | (job.recompute.every <= 1)
    return found.where((found["pp"] > 1) & anywhere, sharing=OPEN)


def for_any_sharding(scenario: Scenario) -> Scenario:
    """*scenario* without what it says of one way of data parallelism: splits say that themselves, unless settings go
    with one way alone.
    """
    content = scenario.model_dump(exclude_unset=True)
    for name in ("ddp", "deepspeed", *(() if _keeps_way(scenario.training) else ("zero",))):
        content["training"].pop(name, None)
    return Scenario.model_validate(content)


def job_of_any_split(scenario: Scenario, folder: Path) -> Job:
    """The job of *scenario* split in a way that goes with everything, with a batch that does, of two micro-batches at
    least. Rows are in as many parts as there, and experts launched one by one if they are so in any split. Raise
    :exc:`simulator.forecast.errors.Refused`.
    """
    training, cards = scenario.training, scenario.cluster.accelerators
    batch = max(2, -(-training.global_batch_sequences // cards)) * cards
    whole = settings_of(Split(1, cards, 1, 1, 1, 1, 1, training.zero, OWN, 1), training)
    job = assemble_job(changed(scenario, whole | {"training.global_batch_sequences": batch}), folder)
    workload = replace(job.workload, overlap=training.overlap_tensor_parallel)
    one_by_one = training.execution == "fused" if training.grouped_gemm is None else job.per_expert
    return replace(job, exchange_parts=training.exchange_parts, workload=workload, per_expert=one_by_one)


def settings_of(split: Split, training: Training) -> dict[str, Any]:
    """Values by path that make a scenario with *training* one of *split*: rows go whole where parts cannot, and
    transfers among tp ranks run alone where there are none to run beside products.
    """
    megatron = training.execution == "fused" and training.fsdp.is_megatron(split.zero)
    whole = split.ep == 1 or split.etp > 1 or split.overlap != NO_OVERLAP or megatron
    alone = split.tp == 1 or not knows_overlap(training.execution, split.zero)
    return (
        split.settings()
        | ({"training.exchange_parts": 1} if training.exchange_parts > 1 and whole else {})
        | ({"training.overlap_tensor_parallel": False} if training.overlap_tensor_parallel and alone else {})
    )


def _keeps_way(training: Training) -> bool:
    """Whether settings go with the way of sharding that they were said for: what is on the host, and Megatron-LM's."""
    sharded = training.fsdp.implementation == "megatron"
    megatron = "megatron" in training.model_fields_set or gathers_as_megatron(training) or sharded
    return bool(offload_of(training).updated_on_host) or megatron


def _stores(splits: Splits, training: Training) -> npt.NDArray[np.bool_]:
    """Which of *splits* keep what *training* stores in fewer bits: full recomputation keeps nothing of it, and what
    attention returns is known of whole sequences. Megatron-FSDP is known without pipeline stages.
    """
    stored = training.float8.stored if training.float8 else ()
    kept = np.ones(len(splits), bool)
    if stored:
        kept &= splits["recompute"] != RECOMPUTE.index("full")
    if training.fsdp.implementation == "megatron":
        kept &= splits["pp"] == 1
    if "core_attn" in stored:
        kept &= splits["cp"] == 1
    return kept


def _room(scenario: Scenario, job: Job) -> Room:
    """What *scenario* leaves to its schedule and its exchanges."""
    training, full = scenario.training, scenario.training.lora is None
    overlap = OVERLAP_WEIGHTS if training.delay_weight_gradients and full else OVERLAP
    workload = job.workload

    def has_way(name: str, tp: int, cp: int, sequences: int, ep: int, etp: int) -> bool:
        tokens = replace(workload, sequence_lengths=workload.sequence_lengths * sequences, tp=tp, cp=cp).sent_tokens
        gpu_direct = scenario.cluster.gpu_direct
        problems = way_problems(name, job.architecture, job.cluster, ep, etp, gpu_direct=gpu_direct)
        return not [*problems, *too_many_tokens(name, tokens)]

    return Room(
        layers=len(job.architecture.layers),
        chunks=scenario.parallel.virtual_pipeline,
        batch=training.global_batch_sequences,
        all_first=training.pipeline_schedule == "gpipe",
        later_weights=full and not training.offload.activations,
        mirrored=not (training.images or training.optimizer.name == "muon" or training.megatron.overlap_grad_reduce),
        overlap=NO_OVERLAP if training.offload.activations else overlap,
        way=has_way,
    )


def _zeros(training: Training) -> tuple[int, ...]:
    """Ways of sharding that go with the optimizer, what is kept between forward and backward, and what the host has."""
    if _keeps_way(training):
        return (training.zero,)
    only_fsdp = training.optimizer.name in TENSOR_BY_TENSOR or not isinstance(training.fsdp.reshard_after_forward, bool)
    return (3,) if only_fsdp else (3, 1)
