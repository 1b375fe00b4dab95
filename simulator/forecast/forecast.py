"""The forecast: a pure function of scenario and data files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.forecast.assembly import assemble_job, passes
from simulator.forecast.attribution import attribute
from simulator.forecast.campaign import campaign, usd_per_hour, verdict
from simulator.forecast.checkpointing import pace_beside, storage
from simulator.forecast.collectives import taken
from simulator.forecast.memory import MemoryForecast, curve, remember
from simulator.forecast.rebalancing import rebalancing
from simulator.forecast.scenario import Scenario
from simulator.forecast.simulate import SimulatedStep, simulate
from simulator.forecast.swap_load import overloads
from simulator.forecast.telling import telling_ranks, timeline
from simulator.forecast.timeline import MemoryCurve, TellingRank, Timeline
from simulator.forecast.uncertainty import interval, widest
from simulator.forecast.uncollected import uncollected
from simulator.program.flops import model_flops
from simulator.program.job import Job
from simulator.program.training_step import TrainingStep

Progress = Callable[[str, float], None]
MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a simulated step comes to."""

    summary: dict[str, Any]
    """The keys of `rackcast run --json`."""
    timeline: Timeline
    memory: tuple[MemoryCurve, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """A step that was simulated and accounted for."""

    job: Job
    step: SimulatedStep
    memory: MemoryForecast
    summary: dict[str, Any]


def forecast(scenario: Scenario, folder: Path, *, fold: bool = True, progress: Progress | None = None) -> Forecast:
    """Simulate *scenario*, whose relative names start from *folder*. *fold* off runs every rank apart.

    Raise :exc:`simulator.forecast.errors.Refused` and what the readers raise for input that does not go together.
    """
    with uncollected():
        run = _run(scenario, folder, fold, None, progress or silent)
        curves = _curves(run.job, run.step, run.memory)
        return Forecast(run.summary, timeline(run.step, telling_ranks(run.job, run.step)), curves)


def summarize(scenario: Scenario, folder: Path, lowering: TrainingStep | None = None) -> dict[str, Any]:
    """The summary of that forecast alone. Its job may have been lowered before: *lowering*."""
    with uncollected():
        return _run(scenario, folder, True, lowering, silent).summary


def _run(scenario: Scenario, folder: Path, fold: bool, lowering: TrainingStep | None, say: Progress) -> _Run:
    began = perf_counter()
    if lowering is None:
        say("reading", 0.0)
        job = assemble_job(scenario, folder, folded=fold)
        say("lowering", 0.0)
        lowering = TrainingStep(job)
    job = lowering.job
    behaviours = job.folding.behaviours
    step = simulate(
        lowering,
        passes(scenario),
        behaviours=behaviours,
        apart=not fold,
        progress=lambda share: say("simulating", share),
    )
    say("accounting", 0.0)
    memory = remember(step.programs, job.cluster, job.folding)
    summary = _summary(scenario, job, step, memory)
    if scenario.campaign is not None:
        kept = storage(scenario.campaign, job.cluster, _stored(job, step))
        pace = pace_beside(job, step, kept, apart=not fold)
        found = campaign(scenario, folder, job.cluster, _tokens(job, step), summary["step_time_s"], kept, pace)
        summary["campaign"] = found | verdict(
            scenario.campaign, found, usd_per_hour(scenario, job.cluster.accelerator.id)
        )
    summary["engine"]["wall_s"] = perf_counter() - began
    return _Run(job, step, memory, summary)


def silent(_stage: str, _share: float) -> None:
    """Progress that nobody listens to."""


def _curves(job: Job, step: SimulatedStep, memory: MemoryForecast) -> tuple[MemoryCurve, ...]:
    """Memory over time of the rank with the highest peak, by tier."""
    number = step.programs[memory.stage].first_rank + int(job.folding.representative[memory.hottest])
    rank, recording = TellingRank(number, "highest peak"), step.recordings[memory.stage]
    return tuple(curve(recording, memory, tier, rank, memory.hottest) for tier in memory.ledgers)


def _summary(scenario: Scenario, job: Job, step: SimulatedStep, memory: MemoryForecast) -> dict[str, Any]:
    parts, priced = _where_time_goes(job, step)
    step_s = step.step_ns / 1e9
    tokens = _tokens(job, step)
    flops = model_flops(job) / job.mesh.pp * step.micro_batches * job.together
    peak = job.cluster.accelerator.peak_flops_per_s("bf16")
    return {
        "scenario": scenario.name,
        "fits": memory.verdict != "does not fit",
        "verdict": memory.verdict,
        "step_time_s": interval(step_s, priced),
        "widest_inputs": widest(priced),
        "tokens_per_s": tokens / step_s,
        "tokens_per_s_per_accelerator": tokens / step_s / job.mesh.ranks,
        "model_flops_utilization": flops / (step_s * peak),
        "memory": memory.summary(),
        "time": parts,
        "compute": _by_kind(priced, step),
        "cost": _cost(scenario, job, step_s, tokens),
        "traffic": _traffic(step, job.together),
        "routing": _routing(job),
        **_images(scenario, job),
        **_segments(job),
        **_swapped(job, step),
        "engine": {
            "events": step.events,
            "tasks": sum(len(program.tasks) for program in step.programs),
            "classes": job.folding.behaviours * job.mesh.pp,
            "ranks": job.mesh.ranks,
            "micro_batches": step.micro_batches * job.together,
            "micro_batches_simulated": step.simulated * job.together,
        },
        "collectives": taken(task for program in step.programs for task in program.tasks),
        "provenance": _provenance(priced),
    }


def _tokens(job: Job, step: SimulatedStep) -> float:
    """Tokens of a step over the whole job."""
    return job.mean_tokens * job.mesh.data_parallel * step.micro_batches * job.together


def _where_time_goes(job: Job, step: SimulatedStep) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """Seconds by part of the step, and by kind and grade of what was priced: means over all ranks."""
    parts, priced = _told(job, step)
    if step.shorter is not None:
        # Each further micro-batch adds what those added by which one run is longer than the other.
        less_parts, less_priced = _told(job, step.shorter)
        times = step.more / (step.simulated - step.shorter.simulated)
        parts = {part: value + times * (value - less_parts[part]) for part, value in parts.items()}
        priced = {key: value + times * (value - less_priced.get(key, 0.0)) for key, value in priced.items()}
        parts["pipeline_bubble_s"] += step.step_ns / 1e9 - sum(parts.values())
    return parts, priced


def _told(job: Job, step: SimulatedStep) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """The same of what one run simulated, and without a pipeline of what its typical micro-batch stands for."""
    weight = job.folding.ranks / job.mesh.ranks
    more = step.more if job.mesh.pp == 1 else 0
    parts: dict[str, float] = {}
    priced: dict[tuple[str, str], float] = {}
    for program, recording in zip(step.programs, step.recordings, strict=True):
        found = attribute(program.tasks, recording, step.simulated, step.simulated_ns)
        for part, slots in found.parts.items():
            parts[part] = parts.get(part, 0.0) + _seconds(slots, more, step.typical, weight)
        for key, slots in found.priced.items():
            priced[key] = priced.get(key, 0.0) + _seconds(slots, more, step.typical, weight)
    return parts, priced


def _seconds(slots: npt.NDArray[np.int64], more: int, typical: range, weight: npt.NDArray[np.float64]) -> float:
    """Weighted seconds in all slots, typical micro-batches standing for *more* ones that were extrapolated."""
    total = slots.sum(axis=0) + more * slots[typical.start : typical.stop].sum(axis=0) / len(typical)
    return float((total * weight).sum() / 1e9)


def _by_kind(priced: dict[tuple[str, str], float], step: SimulatedStep) -> dict[str, float]:
    """Compute seconds by kind of kernel, largest first."""
    kinds = {task.kind for program in step.programs for task in program.tasks if task.stream == "compute"}
    seconds: dict[str, float] = {}
    for (kind, _), value in priced.items():
        if kind in kinds:
            seconds[kind] = seconds.get(kind, 0.0) + value
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _cost(scenario: Scenario, job: Job, step_s: float, tokens: float) -> dict[str, float | None]:
    """USD of a step and of a million tokens; None where no price is known."""
    hourly = usd_per_hour(scenario, job.cluster.accelerator.id)
    if hourly is None:
        return {"usd_per_step": None, "usd_per_1m_tokens": None}
    usd = hourly * job.mesh.ranks * step_s / 3600
    return {"usd_per_step": usd, "usd_per_1m_tokens": usd / tokens * MILLION}


def _stored(job: Job, step: SimulatedStep) -> tuple[float, float]:
    """Bytes of a checkpoint, trained weights with their optimizer's states: in all, and of the fullest rank.

    Replicas store one copy.
    """
    layouts = [program.layout for program in step.programs]
    owned = [
        layout.ownership.elements * job.optimizer.stored_bytes + sum(float(moment.bytes) for moment in layout.born)
        for layout in layouts
    ]
    copies = job.mesh.dp_replicate * (1 if job.zero else job.mesh.fsdp)
    return sum(owned) * job.mesh.stage_ranks / copies, max(owned)


def _traffic(step: SimulatedStep, together: int) -> dict[str, float]:
    """Bytes that the busiest rank sends in a mean micro-batch, by kind of collective, where so many go *together*."""
    most: dict[str, float] = {}
    for program in step.programs:
        sent: dict[str, npt.NDArray[np.float64]] = {}
        for task in program.tasks:
            if task.collective is not None and task.micro_batch in step.typical:
                sent[task.kind] = sent.get(task.kind, np.zeros(1)) + np.asarray(task.collective.wire_bytes)
        for kind, values in sent.items():
            most[kind] = max(most.get(kind, 0.0), float(values.max()) / len(step.typical) / together)
    return {f"{kind}_bytes_per_micro_batch": value for kind, value in sorted(most.items())}


def _routing(job: Job) -> dict[str, Any]:
    """Skew of what is replayed: means over MoE layers and unlike micro-batches; a copy is an expert of its own."""
    if job.routing is None:
        return {"rank_max_over_mean": 1.0, "expert_max_over_mean": 1.0}
    rows = job.routing.rows.astype(np.float64)
    ranks, slots = rows.sum(axis=3), rows.reshape(*rows.shape[:2], -1)
    experts, source = slots.sum(axis=2) / job.routing.placement.experts, job.routing.source_tokens
    return {
        "rank_max_over_mean": float((ranks.max(axis=2) / ranks.mean(axis=2)).mean()),
        "expert_max_over_mean": float((slots.max(axis=2) / experts).mean()),
        "source_max_over_mean": float((source.max(axis=1) / source.mean(axis=1)).mean()),
        "unlike_micro_batches": len(job.micro_batches),
        "dropped_share": job.routing.dropped_share,
        "slots_per_rank": rows.shape[3],
        "tokens_known": job.routing.destinations is not None,
        **rebalancing(job),
    }


def _swapped(job: Job, step: SimulatedStep) -> dict[str, Any]:
    """Which results are kept, as `training.swap` has it, and what of it asks too much; nothing where none is."""
    if not any(job.swaps):
        return {}
    swaps = [job.swap_of(stage) for stage in range(job.mesh.pp)]
    told = overloads([program.tasks for program in step.programs], swaps, weaves=job.weaves)
    named = [{"operators": dict(swap.host), "on_card": dict(swap.card)} for swap in job.swaps]
    return {"swap": (named[0] if len(named) == 1 else {"stages": named}) | {"overloads": told}}


def _segments(job: Job) -> dict[str, Any]:
    """What the job has of each scale-up domain, where it needs several and each spans nodes; nothing elsewhere."""
    cluster, whole = job.cluster, job.cluster.node.scale_up.domain
    if whole == cluster.node.accelerators or cluster.accelerators <= cluster.scale_up_domain:
        return {}
    used = cluster.scale_up_domain
    return {"segments": {"nodes": used // cluster.node.accelerators, "accelerators": used, "of": whole}}


def _images(scenario: Scenario, job: Job) -> dict[str, Any]:
    """How unlike ranks' images are, and which part of the sequences they take; nothing for text alone."""
    tower, load = job.architecture.vision, job.images
    if tower is None or load is None:
        return {}
    counts = np.stack([batch.images.counts for batch in job.micro_batches if batch.images is not None])
    tokens, mean = load.patches // tower.merge**2, float(counts.mean())
    room = scenario.training.sequence_length * scenario.training.micro_batch_sequences
    return {
        "images": {
            "per_rank_mean": mean,
            "per_rank_max": int(counts.max()),
            "rank_max_over_mean": float(counts.max(axis=1).mean()) / mean if mean else 1.0,
            "tokens_per_image": tokens,
            "share_of_sequence": mean * tokens / room,
        }
    }


def _provenance(priced: dict[tuple[str, str], float]) -> dict[str, float]:
    """Share of the priced time by grade."""
    total = sum(priced.values()) or 1.0
    return {
        grade: sum(seconds for (_, g), seconds in priced.items() if g == grade) / total
        for grade in ("measured", "scaled", "datasheet", "assumed")
    }
