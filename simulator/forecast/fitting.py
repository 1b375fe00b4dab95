"""Does it fit, and if not, what would make it fit.

The ledger needs no simulation, so many changes can be tried: one setting at a time, then all memory-saving settings
together, then more accelerators. Those that fit are simulated and ordered by the price of a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simulator.documents import InvalidDocument
from simulator.forecast.assembly import assemble_job, find_architecture, passes
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import Progress, silent, summarize
from simulator.forecast.memory import MemoryForecast, fits, remember
from simulator.forecast.offloading import offload_problems
from simulator.forecast.recomputation import available_modules
from simulator.forecast.scenario import Scenario
from simulator.hardware.cluster import Cluster
from simulator.parallel.folding import Folding
from simulator.program.stage import StageProgram
from simulator.program.training_step import TrainingStep

Change = dict[str, Any]
"""Values by path, as `--set` takes them."""
_DRIVES = ("training.offload.optimizer", "nvme")
"""A change that goes with few others: the cores have to get fp32 states to update."""
MOST_SUGGESTIONS = 5
MOST_DOUBLINGS = 6


def fit(scenario: Scenario, folder: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Memory of *scenario* against capacity: the keys of `rackcast fit --json`."""
    say = progress or silent
    say("accounting", 0.0)
    memory = memory_of(scenario, folder)
    enough = memory.verdict != "does not fit"
    return {
        "scenario": scenario.name,
        "fits": enough,
        "verdict": memory.verdict,
        "memory": memory.summary(),
        "suggestions": [] if enough else _suggestions(scenario, folder, say),
    }


def memory_of(scenario: Scenario, folder: Path) -> MemoryForecast:
    """The ledger of *scenario*, with all that there is to tell of it."""
    return remember(*held_at_most(scenario, folder))


def held_at_most(scenario: Scenario, folder: Path) -> tuple[tuple[StageProgram, ...], Cluster, Folding]:
    """What :func:`held_by` says of *scenario*."""
    return held_by(TrainingStep(assemble_job(scenario, folder)), passes(scenario))


def held_by(lowering: TrainingStep, micro_batches: int) -> tuple[tuple[StageProgram, ...], Cluster, Folding]:
    """Programs of a step that holds as much as any of so many *micro_batches*: a round of them more than are held at
    once, beside the gradients of the first. And where they run: what `remember` and `fits` take.
    """
    shown = min(micro_batches, lowering.held_at_once(micro_batches) + lowering.round)
    return lowering.programs(shown), lowering.job.cluster, lowering.job.folding


def _suggestions(scenario: Scenario, folder: Path, say: Progress) -> list[dict[str, Any]]:
    """The changes that make it fit, cheapest token first."""
    found = []
    say("looking for changes that make it fit", 0.0)
    fitting = _that_fit(scenario, folder)
    for number, change in enumerate(fitting):
        say("simulating what fits", number / len(fitting))
        summary = summarize(changed(scenario, change), folder)
        found.append(
            {
                "change": " ".join(f"{path}={_spelled(value)}" for path, value in change.items()),
                "peak_bytes": summary["memory"]["hbm"]["peak_bytes"],
                "step_time_s": summary["step_time_s"]["p50"],
                "accelerator_s_per_1m_tokens": 1e6 / summary["tokens_per_s_per_accelerator"],
            }
        )
    return sorted(found, key=lambda item: float(item["accelerator_s_per_1m_tokens"]))


def _that_fit(scenario: Scenario, folder: Path) -> list[Change]:
    """Single settings that suffice, then the fewest accelerators that do, with and without the other settings."""
    settings = list(_settings(scenario, folder))
    alike = [change for change in settings if "training.lora" not in change and _DRIVES not in change.items()]
    together = {path: value for change in alike for path, value in change.items()}
    if next(offload_problems(changed(scenario, together)), None):
        together = {path: value for path, value in together.items() if not path.startswith("training.offload")}
    fitting = [change for change in settings if _fits(scenario, folder, change)]
    if not fitting and len(settings) > 1 and _fits(scenario, folder, together):
        fitting.append(together)
    for kept in ({}, together) if together else ({},):
        for grown in _grown(scenario):
            if _fits(scenario, folder, kept | grown):
                fitting.append(kept | grown)
                break
    return fitting[:MOST_SUGGESTIONS]


def _settings(scenario: Scenario, folder: Path) -> Iterator[Change]:
    """Settings of the same job on the same machines that save memory, least intrusive first."""
    training = scenario.training
    if training.zero in (0, 2) and not {"ddp", "deepspeed"} & training.model_fields_set:
        ranks = scenario.parallel.dp_replicate * scenario.parallel.dp_shard
        yield {"training.zero": 3, "parallel.dp_replicate": 1, "parallel.dp_shard": ranks}
    if training.fsdp.made == "whole":
        yield {"training.fsdp.made": "sharded"}
    if not training.fsdp.reshard_after_forward:
        yield {"training.fsdp.reshard_after_forward": True}
    if training.images is not None and not training.images.even and training.sequences is None:
        yield {"training.images.even": True}
    if training.loss != "cut":
        yield {"training.loss": "cut"}
    if training.recompute == "none":
        yield from _selective(scenario, folder)
    if training.recompute != "full":
        yield {"training.recompute": "full"}
    if training.fsdp.micro_batches_per_gather > 1:
        yield {"training.fsdp.micro_batches_per_gather": 1}
    if training.micro_batch_sequences > 1:
        yield {"training.micro_batch_sequences": 1}
    if training.lora is None and (training.optimizer.state_dtype != "bf16" or training.optimizer.master_weights):
        yield {"training.optimizer.state_dtype": "bf16", "training.optimizer.master_weights": False}
    yield from _offloads(scenario)
    if training.lora is None:
        thawed: Change = {"training.images.frozen": []} if training.images and training.images.frozen else {}
        yield {"training.lora": {"rank": 8, "targets": ["attention"]}, **thawed}


def _offloads(scenario: Scenario) -> Iterator[Change]:
    """To host memory: what autograd keeps, and what an update works on; that to drives."""
    training, changes = scenario.training, list[Change]()
    if training.offload.activations is None:
        changes.append({"training.offload.activations": "streamed"})
    if training.lora is None and not training.offload.parameters and not training.offload.optimizer:
        changes.append(
            {"training.offload.parameters": True} if training.zero == 3 else {"training.offload.optimizer": 1}
        )
    if training.lora is None and training.zero == 3 and training.offload.optimizer != "nvme":
        pipelines = dict.fromkeys(("training.offload.nvme.pipeline_read", "training.offload.nvme.pipeline_write"), True)
        shards: Change = {"training.offload.parameters": False} if training.offload.parameters else {}
        changes.append({_DRIVES[0]: _DRIVES[1], **shards, **pipelines})
    yield from (change for change in changes if not next(offload_problems(changed(scenario, change)), None))


def _selective(scenario: Scenario, folder: Path) -> Iterator[Change]:
    """Less than full recomputation: what lies between products under PyTorch's checkpoint; under Megatron-LM's, all
    modules that run neither the exchanges of experts nor attention again.
    """
    training = scenario.training
    if training.zero != 1:
        yield {"training.recompute": {"keep": "alternate_matmuls"}}
    elif training.execution == "fused":
        gathers = scenario.parallel.cp > 1 and training.context_parallel != "ring"
        costly = {"core_attn", "moe", "shared_experts"} | ({"mla_up_proj"} if gathers else set())
        modules = sorted(available_modules(find_architecture(scenario.model, folder), training) - costly)
        if modules:
            yield {"training.recompute": {"modules": modules}}


def _grown(scenario: Scenario) -> Iterator[Change]:
    """Twice the accelerators, and again: the parameters sharded over more, the batch as large as it must be."""
    training = scenario.training
    for doubling in range(1, MOST_DOUBLINGS + 1):
        factor = 2**doubling
        shard = scenario.parallel.dp_shard * factor
        change: Change = {"cluster.accelerators": scenario.cluster.accelerators * factor, "parallel.dp_shard": shard}
        once = shard * scenario.parallel.dp_replicate * training.micro_batch_sequences
        if training.global_batch_sequences % once:
            change["training.global_batch_sequences"] = -(-training.global_batch_sequences // once) * once
        yield change


def _fits(scenario: Scenario, folder: Path, change: Change) -> bool:
    """Whether *scenario* with *change* is a valid job that fits."""
    try:
        return fits(*held_at_most(changed(scenario, change), folder))
    except (Refused, InvalidDocument):
        return False


def changed(scenario: Scenario, change: Change) -> Scenario:
    """*scenario* with the values of *change* in place of its own."""
    content = scenario.model_dump(exclude_unset=True)
    for path, value in change.items():
        *sections, name = path.split(".")
        part = content
        for section in sections:
            part = part.setdefault(section, {})
        part[name] = value
    return Scenario.model_validate(content)


def _spelled(value: Any) -> str:
    """A value as `--set` reads it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_spelled(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
