"""What a scenario keeps in host memory, and what of it does not go together."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.recomputation import recompute_of
from simulator.forecast.scenario import Scenario, Training
from simulator.forecast.scenario_memory import Offload as Asked
from simulator.hardware.node import Node
from simulator.program.offload import Offload, OnDrives, Tier, ZenFlow

_WHERE = "training.offload"
_WHOLE_PASSES = ("1f1b", "gpipe")


def offload_of(training: Training) -> Offload:
    """What *training* keeps in host memory."""
    asked = training.offload
    if asked.optimizer != "nvme":
        zenflow = None if asked.zenflow is None else ZenFlow(asked.zenflow.topk_ratio, asked.zenflow.overlap_step)
        return Offload(asked.optimizer, asked.parameters is True, asked.activations, asked.threads, zenflow=zenflow)
    drives = asked.nvme
    way = OnDrives(
        drives.share,
        drives.sub_group_elements,
        drives.pipeline_read,
        drives.pipeline_write,
        drives.direct,
        drives.block,
        drives.queue_depth,
    )
    shards: Tier = "nvme" if asked.parameters == "nvme" else "ddr" if asked.parameters else "hbm"
    return Offload(1.0, False, asked.activations, asked.threads, way, shards=shards)


def offload_problems(scenario: Scenario) -> Iterator[str]:
    """Why the other settings have no such offload."""
    yield from _update_problems(scenario.training)
    yield from _drive_problems(scenario.training.offload)
    yield from _zenflow_problems(scenario)
    if scenario.training.zero == 2 and scenario.training.offload.optimizer:
        yield from _zero_offload_problems(scenario)
    if scenario.training.offload.activations is not None:
        yield from _activation_problems(scenario)


def node_problems(offload: Offload, node: Node, cards: int) -> Iterator[str]:
    """Why *node*, of which *cards* are in use, has not the cores or drives that *offload* works with."""
    if offload.drives is not None and node.nvme is None:
        yield f"{_WHERE}.optimizer: found nvme, but {node.name} has no drives; allowed: 1, or a node file with nvme"
    asked, cores = offload.threads * cards, node.cpu.cores.value
    if offload.updated_on_host and asked > cores:
        yield (
            f"{_WHERE}.threads: found {offload.threads}, and threads({offload.threads}) * {cards} cards of a node = "
            f"{asked}, but {node.name} has {cores} cores; nearest: {cores // cards}"
        )


def _update_problems(training: Training) -> Iterator[str]:
    asked, optimizer, zero = training.offload, training.optimizer, training.zero
    if not asked.optimizer and not asked.parameters:
        if "threads" in asked.model_fields_set:
            yield f"{_WHERE}.threads: there is nothing for the host's cores to update; leave it out"
        return
    if optimizer.name != "adamw":
        yield f"{_WHERE}: found optimizer {optimizer.name}; the host's cores are known to run AdamW; allowed: adamw"
    if asked.optimizer and asked.optimizer != "nvme" and asked.parameters:
        yield f"{_WHERE}.optimizer: is with the parameters on the host anyway; leave it out, or parameters"
    if asked.parameters and zero != 3:
        yield f"{_WHERE}.parameters: is for shards, found zero {zero}; allowed: zero 3"
    elif asked.optimizer:
        yield from _optimizer_problems(training)
    if zero == 3:
        yield from _sharded_problems(training)


def _optimizer_problems(training: Training) -> Iterator[str]:
    asked, optimizer, zero = training.offload, training.optimizer, training.zero
    if asked.optimizer == "nvme":
        if zero != 3:
            yield f"{_WHERE}.optimizer: found nvme, which is ZeRO-3's, with zero {zero}; allowed: zero 3"
    elif zero == 0:
        yield f"{_WHERE}.optimizer: is not simulated under zero 0; allowed: zero 1, 2 or 3"
    elif zero in (2, 3) and asked.optimizer != 1:
        yield f"{_WHERE}.optimizer: found {asked.optimizer:g}, but under zero {zero} it moves as a whole; allowed: 1"
    if not optimizer.master_weights or optimizer.state_dtype != "fp32" or optimizer.implementation != "fused":
        yield (
            f"{_WHERE}.optimizer: the host updates fp32 master weights with fp32 states in one pass; allowed: "
            "master_weights true, state_dtype fp32, implementation fused"
        )


def _zero_offload_problems(scenario: Scenario) -> Iterator[str]:
    """What is not simulated of DeepSpeed's ZeRO-2 with its optimizer on the host."""
    if scenario.training.deepspeed.overlap_comm:
        yield (
            f"{_WHERE}.optimizer: found beside zero 2, whose copies beside overlapped reductions are not simulated; "
            "allowed: overlap_comm false"
        )


def _zenflow_problems(scenario: Scenario) -> Iterator[str]:
    training, where = scenario.training, f"{_WHERE}.zenflow"
    if training.offload.zenflow is None:
        return
    if training.zero != 2:
        yield f"{where}: is simulated as DeepSpeed's ZeRO-2 has it, found zero {training.zero}; allowed: zero 2"
    elif training.offload.optimizer != 1:
        yield f"{where}: found optimizer {training.offload.optimizer}; allowed: optimizer 1"
    if training.lora is not None:
        yield f"{where}: columns of adapters are not chosen; leave it out, or lora"


def _drive_problems(asked: Asked) -> Iterator[str]:
    if asked.parameters == "nvme" and asked.optimizer != "nvme":
        yield f"{_WHERE}.parameters: found nvme, where the optimizer is not; allowed: optimizer nvme, or true"
    if asked.nvme.model_fields_set and asked.optimizer != "nvme":
        yield f"{_WHERE}.nvme: nothing is on drives; leave it out, or optimizer nvme"
    if asked.nvme.direct and asked.parameters != "nvme":
        yield f"{_WHERE}.nvme.direct: no parameters are on drives for cards to read; allowed: parameters nvme"


def _sharded_problems(training: Training) -> Iterator[str]:
    if training.float8 is not None and training.float8.all_gather:
        yield f"{_WHERE}: scales of shards on the host are not simulated; allowed: float8 without all_gather"
    if not isinstance(training.fsdp.reshard_after_forward, bool):
        yield f"{_WHERE}: parts kept nearby are not simulated with shards on the host; allowed: true or false"
    if training.fsdp.made == "whole":
        yield "training.fsdp.made: shards on the host of a model made whole are not simulated; leave it out"
    if training.overlap_exchanges:
        yield f"{_WHERE}: shards are not moved beside two passes at once; allowed: overlap_exchanges false"
    if training.offload.optimizer and "reduce_dtype" in training.fsdp.model_fields_set:
        yield "training.fsdp.reduce_dtype: DeepSpeed reduces in bf16 and widens behind that; leave it out"


def _activation_problems(scenario: Scenario) -> Iterator[str]:
    training, where = scenario.training, f"{_WHERE}.activations"
    recompute = recompute_of(training)
    if recompute.keep or recompute.modules:
        yield (
            f"{where}: found with selective recomputation, whose kept results are not offloaded; allowed: recompute "
            "none, full, or every"
        )
    yield from pass_problems(training, where)
    if training.images is not None:
        yield f"{where}: what the vision tower keeps is not offloaded yet; leave it out, or images"
    if training.float8 is not None:
        yield f"{where}: eight-bit copies are not offloaded yet; leave it out, or float8"


def pass_problems(training: Training, where: str) -> Iterator[str]:
    """Why tensors that come back pass by pass, as *where* asks, do not go with how passes follow each other."""
    if training.pipeline_schedule not in _WHOLE_PASSES:
        yield (
            f"{where}: found pipeline_schedule {training.pipeline_schedule}, whose passes do not follow each other; "
            f"allowed: {' or '.join(_WHOLE_PASSES)}"
        )
