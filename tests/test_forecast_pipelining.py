"""What rules out virtual stages and layers of stages, told with the arithmetic."""

import pytest
from small_jobs import Small

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused


@pytest.mark.parametrize(
    ("overrides", "messages"),
    [
        (
            ("parallel={dp_shard: 16, virtual_pipeline: 2}",),
            ["parallel.virtual_pipeline: found 2, but there is one pipeline stage; allowed: 1, or pp above 1"],
        ),
        (
            ("parallel={dp_shard: 8, pp: 2, virtual_pipeline: 3}", "training.global_batch_sequences=24"),
            ["parallel.virtual_pipeline: found 3, but 2 * 3 = 6 virtual stages are more than the model's 4 layers; "
             "allowed: up to 2",
             "training.global_batch_sequences: found 24, which is 3 micro-batches, and interleaved stages take them 2 "
             "at a time; nearest: 32"],
        ),
        (
            ("parallel={dp_shard: 8, pp: 2, virtual_pipeline: 2}", "training.pipeline_schedule=gpipe"),
            ["training.pipeline_schedule: found gpipe, which has one virtual stage a stage; allowed: 1f1b"],
        ),
        (
            ("parallel={dp_shard: 8, pp: 2}", "training.pipeline_schedule=zb_h1", "training.lora={rank: 8}"),
            ["training.pipeline_schedule: found zb_h1, which puts off gradients of weights, and zero 3 reduces them "
             "layer by layer; allowed: zero 1",
             "training.pipeline_schedule: found zb_h1, which puts off gradients of weights, and LoRA has none of base "
             "weights; allowed: 1f1b, gpipe"],
        ),
        (
            ("parallel={dp_shard: 8, pp: 2}", "training.zero=1", "training.pipeline_schedule=dualpipe",
             "training.optimizer.name=muon"),
            ["training.global_batch_sequences: found 16, which is 2 micro-batches, and DualPipe takes an even number "
             "of at least 2 * pp = 4; nearest: 32",
             "training.optimizer.name: found muon, whose matrices copies of a stage do not share; allowed: adamw, sgd"],
        ),
        (
            ("parallel={dp_shard: 8, pp: 2, stage_layers: [1, 2, 2]}",),
            ["parallel.stage_layers: found 3 numbers, but there are 2 virtual stages; allowed: one for each",
             "parallel.stage_layers: found 5 layers in all, but the model has 4; allowed: that sum"],
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(small: Small, overrides: tuple[str, ...], messages: list[str]) -> None:
    with pytest.raises(Refused) as caught:
        assemble_job(*small("dense", *overrides))
    assert list(caught.value.messages) == messages


def test_layers_of_virtual_stages_are_those_asked_for(small: Small) -> None:
    job = assemble_job(
        *small("dense", "parallel={dp_shard: 8, pp: 2, virtual_pipeline: 2, stage_layers: [1, 0, 2, 1]}")
    )
    assert [[layer.index for layer in job.layers_of(stage)] for stage in (0, 1)] == [[0, 1, 2], [3]]
    assert [job.positions_of(stage) for stage in (0, 1)] == [(0, 0, 1), (0,)]
