"""The forecast: a pure function of scenario and data files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.forecast.assembly import assemble_job, micro_batches
from simulator.forecast.attribution import Attribution, attribute
from simulator.forecast.memory import MemoryForecast, curve, remember
from simulator.forecast.scenario import Scenario
from simulator.forecast.simulate import SimulatedStep, simulate
from simulator.forecast.timeline import MemoryCurve, TellingRank, Timeline
from simulator.forecast.uncertainty import interval, widest
from simulator.hardware.library import price
from simulator.program.flops import model_flops
from simulator.program.training_step import Job, TrainingStep

Progress = Callable[[str, float], None]
MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a simulated step comes to."""

    summary: dict[str, Any]
    """The keys of `rackcast run --json`."""
    timeline: Timeline
    memory: tuple[MemoryCurve, ...]


def forecast(scenario: Scenario, folder: Path, *, fold: bool = True, progress: Progress | None = None) -> Forecast:
    """Simulate *scenario*, whose relative names start from *folder*. *fold* off runs every rank apart.

    Raise :exc:`simulator.forecast.errors.Refused` and what the readers raise for input that does not go together.
    """
    began = perf_counter()
    say = progress or silent
    say("reading", 0.0)
    job = assemble_job(scenario, folder, folded=fold)
    say("lowering", 0.0)
    lowering = TrainingStep(job)
    behaviours = job.folding.behaviours
    step = simulate(
        lowering,
        micro_batches(scenario),
        behaviours=behaviours,
        apart=not fold,
        progress=lambda share: say("simulating", share),
    )
    say("accounting", 0.0)
    attribution = attribute(step.program.tasks, step.recording, step.simulated)
    memory = remember(step.program, job.cluster, behaviours)
    telling = _telling_ranks(job, step)
    summary = _summary(scenario, job, step, attribution, memory)
    summary["engine"]["wall_s"] = perf_counter() - began
    hottest = memory.hottest
    label = TellingRank(int(job.folding.representative[hottest]), "highest peak")
    curves = tuple(curve(step.recording, memory, tier, label, hottest) for tier in memory.ledgers)
    return Forecast(summary, _timeline(step, telling), curves)


def silent(_stage: str, _share: float) -> None:
    """Progress that nobody listens to."""


def _summary(
    scenario: Scenario, job: Job, step: SimulatedStep, attribution: Attribution, memory: MemoryForecast
) -> dict[str, Any]:
    weight = job.folding.ranks / job.folding.ranks.sum()
    step_s = step.step_ns / 1e9
    priced = {key: _whole_step_s(slots, step, weight) for key, slots in attribution.priced.items()}
    tokens = scenario.training.global_batch_sequences * scenario.training.sequence_length
    flops = model_flops(job) * step.micro_batches
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
        "time": {part: _whole_step_s(slots, step, weight) for part, slots in attribution.parts.items()},
        "compute": _by_kind(priced, step),
        "cost": _cost(scenario, job, step_s, tokens),
        "traffic": _traffic(step),
        "routing": _routing(job),
        "engine": {
            "events": step.events,
            "tasks": len(step.program.tasks),
            "classes": job.folding.behaviours,
            "ranks": job.mesh.ranks,
            "micro_batches": step.micro_batches,
            "micro_batches_simulated": step.simulated,
        },
        "provenance": _provenance(priced),
    }


def _whole_step_s(slots: npt.NDArray[np.int64], step: SimulatedStep, weight: npt.NDArray[np.float64]) -> float:
    """Mean over ranks of the seconds in all slots, a typical micro-batch standing for those that were extrapolated."""
    total = slots.sum(axis=0) + step.more * slots[step.typical]
    return float((total * weight).sum() / 1e9)


def _by_kind(priced: dict[tuple[str, str], float], step: SimulatedStep) -> dict[str, float]:
    """Compute seconds by kind of kernel, largest first."""
    kinds = {task.kind for task in step.program.tasks if task.stream == "compute"}
    seconds: dict[str, float] = {}
    for (kind, _), value in priced.items():
        if kind in kinds:
            seconds[kind] = seconds.get(kind, 0.0) + value
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _cost(scenario: Scenario, job: Job, step_s: float, tokens: int) -> dict[str, float | None]:
    """USD of a step and of a million tokens; None where no price is known."""
    hourly = scenario.usd_per_accelerator_hour
    if hourly is None:
        listed = price(job.cluster.accelerator.id)
        hourly = listed.value if listed else None
    if hourly is None:
        return {"usd_per_step": None, "usd_per_1m_tokens": None}
    usd = hourly * job.mesh.ranks * step_s / 3600
    return {"usd_per_step": usd, "usd_per_1m_tokens": usd / tokens * MILLION}


def _traffic(step: SimulatedStep) -> dict[str, float]:
    """Bytes that the busiest rank sends in one micro-batch, by kind of collective."""
    sent: dict[str, npt.NDArray[np.float64]] = {}
    for task in step.program.tasks:
        if task.collective is not None and task.micro_batch == step.typical:
            sent[task.kind] = sent.get(task.kind, np.zeros(1)) + np.asarray(task.collective.wire_bytes)
    return {f"{kind}_bytes_per_micro_batch": float(values.max()) for kind, values in sorted(sent.items())}


def _routing(job: Job) -> dict[str, Any]:
    if job.routing is None:
        return {"rank_max_over_mean": 1.0, "expert_max_over_mean": 1.0}
    return {
        "table": job.routing.name,
        "rank_max_over_mean": float(job.routing.rank_max_over_mean(job.mesh.ep)),
        "expert_max_over_mean": float(np.mean(job.routing.expert_max_over_mean())),
    }


def _provenance(priced: dict[tuple[str, str], float]) -> dict[str, float]:
    """Share of the priced time by grade."""
    total = sum(priced.values()) or 1.0
    return {
        grade: sum(seconds for (_, g), seconds in priced.items() if g == grade) / total
        for grade in ("measured", "scaled", "datasheet", "assumed")
    }


def _telling_ranks(job: Job, step: SimulatedStep) -> list[tuple[int, TellingRank]]:
    """(behaviour, rank) of the median, the hottest and the coldest rank by compute time."""
    busy = np.zeros(job.folding.behaviours, np.int64)
    for position, task in enumerate(step.program.tasks):
        if task.stream == "compute":
            busy += step.recording.end_ns[position] - step.recording.start_ns[position]
    order = np.argsort(busy, kind="stable")
    chosen = {"median": order[len(order) // 2], "hottest": order[-1], "coldest": order[0]}
    if busy.max() == busy.min():
        chosen = {"every rank alike": order[0]}
    return [(int(b), TellingRank(int(job.folding.representative[b]), label)) for label, b in chosen.items()]


def _timeline(step: SimulatedStep, telling: list[tuple[int, TellingRank]]) -> Timeline:
    tasks, columns = step.program.tasks, [behaviour for behaviour, _ in telling]
    wire = np.zeros((len(tasks), len(columns)))
    for position, task in enumerate(tasks):
        if task.collective is not None:
            wire[position] = np.broadcast_to(task.collective.wire_bytes, step.recording.end_ns.shape[1:])[columns]
    return Timeline(
        ranks=tuple(rank for _, rank in telling),
        name=tuple(task.name for task in tasks),
        stream=tuple(task.stream for task in tasks),
        kind=tuple(task.kind for task in tasks),
        phase=tuple(task.phase for task in tasks),
        layer=np.array([task.layer for task in tasks]),
        micro_batch=np.array([task.micro_batch for task in tasks]),
        start_ns=step.recording.begin_ns[:, columns],
        end_ns=step.recording.end_ns[:, columns],
        wire_bytes=wire,
    )
