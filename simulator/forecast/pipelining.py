"""The pipeline of a scenario: its schedule, its virtual stages, and what rules them out."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario import Scenario
from simulator.program.pipeline import Pipeline

_LATER_WEIGHTS = ("zb_h1", "dualpipe")
"""Schedules that put off gradients of weights."""


def schedule_of(asked: str, virtual_pipeline: int, *, overlaps: bool) -> str:
    """The file of `schedules/` that it runs: 1F1B over several virtual stages is interleaved, or combined in pairs."""
    if asked != "1f1b":
        return asked
    if overlaps:
        return "combined"
    return "interleaved" if virtual_pipeline > 1 else asked


def pipeline_of(scenario: Scenario) -> Pipeline:
    """How its layers lie on stages."""
    split, mirrored = scenario.parallel, scenario.training.pipeline_schedule == "dualpipe"
    return Pipeline(split.pp, 2 if mirrored else split.virtual_pipeline, mirrored, split.stage_layers or ())


def pipeline_problems(scenario: Scenario, layers: int) -> Iterator[str]:
    """What does not go with a model of so many *layers*."""
    split, asked = scenario.parallel, scenario.training.pipeline_schedule
    virtual = pipeline_of(scenario).virtual_stages
    if split.stage_layers is not None:
        yield from _stage_layer_problems(split.stage_layers, virtual, layers)
    elif split.pp > layers:
        yield f"parallel.pp: found {split.pp}, but the model has {layers} layers; allowed: up to that"
    elif virtual > layers:
        yield (
            f"parallel.virtual_pipeline: found {split.virtual_pipeline}, but {split.pp} * {split.virtual_pipeline} = "
            f"{virtual} virtual stages are more than the model's {layers} layers; allowed: up to {layers // split.pp}"
        )
    if split.virtual_pipeline > 1:
        yield from _interleaving_problems(scenario, asked)
    if asked in _LATER_WEIGHTS:
        yield from _later_weight_problems(scenario, asked)
    if asked == "dualpipe":
        yield from _mirror_problems(scenario)
    yield from _overlap_problems(scenario, asked)


def _interleaving_problems(scenario: Scenario, asked: str) -> Iterator[str]:
    split, found = scenario.parallel, scenario.parallel.virtual_pipeline
    if split.pp == 1:
        yield f"parallel.virtual_pipeline: found {found}, but there is one pipeline stage; allowed: 1, or pp above 1"
    if asked != "1f1b":
        yield f"training.pipeline_schedule: found {asked}, which has one virtual stage a stage; allowed: 1f1b"
    ranks = split.dp_replicate * split.dp_shard * scenario.training.micro_batch_sequences
    batch = scenario.training.global_batch_sequences
    if batch % ranks == 0 and batch // ranks % split.pp:
        near = max(split.pp, round(batch / ranks / split.pp) * split.pp) * ranks
        yield (
            f"training.global_batch_sequences: found {batch}, which is {batch // ranks} micro-batches, and interleaved "
            f"stages take them {split.pp} at a time; nearest: {near}"
        )


def _later_weight_problems(scenario: Scenario, asked: str) -> Iterator[str]:
    training, found = (
        scenario.training,
        f"training.pipeline_schedule: found {asked}, which puts off gradients of weights",
    )
    if training.zero != 1:
        yield f"{found}, and zero {training.zero} reduces them layer by layer; allowed: zero 1"
    if training.lora is not None:
        yield f"{found}, and LoRA has none of base weights; allowed: 1f1b, gpipe"


def _overlap_problems(scenario: Scenario, asked: str) -> Iterator[str]:
    split, training = scenario.parallel, scenario.training
    if training.delay_weight_gradients and not training.overlap_exchanges:
        yield "training.delay_weight_gradients: found true without overlap_exchanges, whose exchanges they run beside"
    if training.delay_weight_gradients and training.lora is not None:
        yield "training.delay_weight_gradients: found true, and LoRA has none of base weights; allowed: false"
    if not training.overlap_exchanges:
        return
    where = "training.overlap_exchanges: found true"
    if split.ep == 1:
        yield f"{where}, but ep is 1 and nothing is exchanged; allowed: false, or ep above 1"
    if training.zero != 1:
        yield f"{where}, which is simulated for parameters that ranks hold whole; allowed: zero 1"
    if asked not in ("1f1b", "dualpipe"):
        yield f"{where}, and {asked} has no pairs of passes; allowed: pipeline_schedule 1f1b or dualpipe"
    elif asked == "1f1b" and split.pp > 1 and split.virtual_pipeline == 1:
        yield f"{where}, and pairs of unlike micro-batches need virtual stages; allowed: virtual_pipeline above 1"
    ranks = split.dp_replicate * split.dp_shard * training.micro_batch_sequences
    if split.pp == 1 and training.global_batch_sequences == ranks:
        near = 2 * ranks
        yield f"{where}, but a step of {ranks} sequences is one micro-batch, which has no pair; nearest: {near}"
    if training.offload.activations:
        yield f"{where}, and copies of activations beside it are not simulated; allowed: no offload"


def _mirror_problems(scenario: Scenario) -> Iterator[str]:
    """What does not go with two whole models in opposite directions."""
    split, training = scenario.parallel, scenario.training
    ranks = split.dp_replicate * split.dp_shard * training.micro_batch_sequences
    if split.pp % 2:
        yield f"parallel.pp: found {split.pp}, but DualPipe pairs stages from both ends; nearest: {split.pp + 1}"
    count, least = training.global_batch_sequences // ranks, 2 * split.pp
    if training.global_batch_sequences % ranks == 0 and (count % 2 or count < least):
        near = max(least, count + count % 2) * ranks
        yield (
            f"training.global_batch_sequences: found {training.global_batch_sequences}, which is {count} "
            f"micro-batches, and DualPipe takes an even number of at least 2 * pp = {least}; nearest: {near}"
        )
    if training.images is not None:
        yield "training.images: DualPipe is simulated for text alone; leave it out, or pipeline_schedule 1f1b"
    if training.optimizer.name == "muon":
        yield "training.optimizer.name: found muon, whose matrices copies of a stage do not share; allowed: adamw, sgd"


def _stage_layer_problems(counts: tuple[int, ...], virtual: int, layers: int) -> Iterator[str]:
    where = "parallel.stage_layers"
    if len(counts) != virtual:
        yield f"{where}: found {len(counts)} numbers, but there are {virtual} virtual stages; allowed: one for each"
    if sum(counts) != layers:
        yield f"{where}: found {sum(counts)} layers in all, but the model has {layers}; allowed: that sum"
