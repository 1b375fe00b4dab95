"""Megatron-LM's distributed optimizer beside compute: a dense model of four layers on 16 ranks, by hand.

A layer is 1,024 wide, with 8 heads and an intermediate width of 4,096; the vocabulary has 2,048 words. Buckets close at
40 million elements: three layers of 16.8 million.
"""

from collections.abc import Iterable

import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.simulation import Part, Simulation
from simulator.engine.task import Task
from simulator.forecast.assembly import assemble_job
from simulator.program.stage import StageProgram
from simulator.program.training_step import TrainingStep
from simulator.program.zero1_overlap import bucket_elements

LAYER = 4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
ENDS = 2 * 2048 * 1024 + 1024
BOTH = ("training.zero=1", "training.megatron={overlap_grad_reduce: true, overlap_param_gather: true}")
REDUCED = ("training.zero=1", "training.megatron={overlap_grad_reduce: true}")


def transfers(tasks: Iterable[Task], name: str) -> list[float]:
    """Bytes sent by each collective of that name, of 16 ranks each of which keeps a sixteenth."""
    return [float(np.max(t.collective.wire_bytes)) * 16 / 15 for t in tasks if t.name == name and t.collective]


def stages(small: Small, *overrides: str, micro_batches: int = 4) -> tuple[StageProgram, ...]:
    return TrainingStep(assemble_job(*small("dense", *overrides))).programs(micro_batches)


def test_a_bucket_is_40_million_elements_or_a_million_a_rank():
    assert (bucket_elements(16), bucket_elements(64)) == (40_000_000, 64_000_000)


def test_a_bucket_is_reduced_when_its_gradients_are_there_and_the_rest_behind_the_embedding(small: Small) -> None:
    program = lower(small("dense", *REDUCED), 2)
    # The head and the final norm come first; with layer 3 and most of 2 and 1 they are 40 million.
    first, second = transfers(program.tasks, "reduce_scatter dp_shard")
    assert first + second == pytest.approx(4 * (4 * LAYER + ENDS))
    assert 4 * 40_000_000 <= first < 4 * (40_000_000 + 2 * 1024 * 4096)
    begun = [t for t in program.tasks if t.name == "reduce_scatter dp_shard"]
    assert {(t.phase, t.micro_batch) for t in begun} == {("backward", 1)}
    assert transfers(program.tasks, "all_gather dp_shard") == [pytest.approx(2 * (4 * LAYER + ENDS))]


def test_buckets_are_looked_through_and_scaled_before_they_are_reduced(small: Small) -> None:
    names = [t.name for t in lower(small("dense", *REDUCED), 1).tasks]
    passes = [name for name in names if name in ("check for NaN", "scale gradients", "reduce_scatter dp_shard")]
    assert passes == ["check for NaN", "scale gradients", "reduce_scatter dp_shard"] * 2


def test_parameters_are_gathered_one_bucket_ahead_of_the_first_forward_pass(small: Small) -> None:
    tasks = lower(small("dense", *BOTH), 2).tasks
    # Both ends, and layers until 40 million: 4.2 + 3 x 16.8. Then the last layer.
    assert transfers(tasks, "all_gather dp_shard") == [
        pytest.approx(2 * (ENDS + 3 * LAYER)),
        pytest.approx(2 * LAYER),
    ]
    gathers = [t for t in tasks if t.name == "all_gather dp_shard"]
    assert {(t.phase, t.micro_batch) for t in gathers} == {("forward", 0)}
    embedding = next(n for n, t in enumerate(tasks) if t.name == "embedding")
    assert tasks.index(gathers[0]) in tasks[embedding].deps


def test_each_chunk_but_the_first_is_one_bucket(small: Small) -> None:
    split = ("parallel={dp_shard: 8, pp: 2, virtual_pipeline: 2}", *BOTH)
    for program in stages(small, *split):
        sent = [float(np.max(t.collective.wire_bytes)) for t in program.tasks if t.name == "all_gather dp_shard"]
        reduced = [t for t in program.tasks if t.name == "reduce_scatter dp_shard"]
        # A layer each, and one end of the model, in one of the two chunks.
        assert len(sent) == len(reduced) == 2
        ends = ENDS / 2 + (512 if program.first_rank else -512)
        assert sum(sent) == pytest.approx(2 * (2 * LAYER + ends) * 7 / 8)


def test_what_is_beside_compute_hides_behind_it(small: Small) -> None:
    long = ("training.micro_batch_sequences=16", "training.global_batch_sequences=256")

    def step_ns(*overrides: str) -> int:
        (recording,) = Simulation(Part(lower(small("dense", *overrides, *long), 1).tasks, 1)).run()
        return int(recording.end_ns.max())

    assert step_ns(*REDUCED) < step_ns("training.zero=1")


def test_matmuls_that_are_not_fused_leave_their_gradients_to_a_hook(small: Small) -> None:
    fused = lower(small("dense", "training.zero=1"), 1)
    apart = lower(small("dense", "training.zero=1", "training.megatron={gradient_accumulation_fusion: false}"), 1)
    assert any(a.key == "resident.unread gradients" for a in fused.resident)
    assert not any(a.key == "resident.unread gradients" for a in apart.resident)

    def made(program: StageProgram) -> float:
        return sum(float(a.bytes) for t in program.tasks for a in t.allocates if a.key.startswith("gradient."))

    # Before, of the ends and norms alone; then of every weight.
    assert made(fused) == 2 * (ENDS + 4 * 2 * 1024)
    assert made(apart) == 2 * (ENDS + 4 * LAYER)
