"""The pipeline of a scenario: its schedule, its virtual stages, and what rules them out."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario import Scenario
from simulator.program.pipeline import Pipeline


def schedule_of(scenario: Scenario) -> str:
    """The file of `schedules/` that it runs: 1F1B over several virtual stages is interleaved."""
    asked = scenario.training.pipeline_schedule
    return "interleaved" if asked == "1f1b" and scenario.parallel.virtual_pipeline > 1 else asked


def pipeline_of(scenario: Scenario) -> Pipeline:
    """How its layers lie on stages."""
    split = scenario.parallel
    return Pipeline(split.pp, split.virtual_pipeline, layers=split.stage_layers or ())


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


def _stage_layer_problems(counts: tuple[int, ...], virtual: int, layers: int) -> Iterator[str]:
    where = "parallel.stage_layers"
    if len(counts) != virtual:
        yield f"{where}: found {len(counts)} numbers, but there are {virtual} virtual stages; allowed: one for each"
    if sum(counts) != layers:
        yield f"{where}: found {sum(counts)} layers in all, but the model has {layers}; allowed: that sum"
