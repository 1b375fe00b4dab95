"""FSDP2 beneath pipeline stages: what is gathered and reduced how often, and the memory that it takes."""

from collections import Counter

import numpy as np
from small_jobs import Small, lower

from simulator.program.stage import StageProgram

# The first of two stages: two layers and the embedding, over 8 ranks; every dim divides by 8.
LAYER = 4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
EMBEDDING = 2048 * 1024
STAGES = "parallel={dp_shard: 8, pp: 2}"
KEPT = "training.fsdp.reshard_after_forward=false"


def times(program: StageProgram, start: str) -> Counter[str]:
    return Counter(task.name for task in program.tasks if task.name.startswith(start))


def largest(program: StageProgram, kind: str) -> float:
    held: dict[str, float] = {}
    level = 0.0
    for task in program.tasks:
        held |= {one.key: float(np.max(one.bytes)) for one in task.allocates if one.kind == kind}
        level = max(level, sum(held.values()))
        for key in task.releases:
            held.pop(key, None)
    return level


def test_gradients_are_reduced_once_a_step(small: Small) -> None:
    program = lower(small("dense", STAGES), micro_batches=4)
    assert times(program, "reduce-scatter") == {
        "reduce-scatter root": 1,
        "reduce-scatter layer 0": 1,
        "reduce-scatter layer 1": 1,
    }
    last = max(n for n, task in enumerate(program.tasks) if task.phase == "backward")
    first = min(n for n, task in enumerate(program.tasks) if task.name.startswith("reduce-scatter"))
    assert last < first


def test_parameters_stay_gathered_behind_a_backward_pass(small: Small) -> None:
    # F F B F B F B B: behind the first two forward passes a layer is freed, and gathered for the first backward pass;
    # each further forward pass finds it there and frees it, so that the backward pass behind it gathers again.
    assert times(lower(small("dense", STAGES), 4), "all-gather layer 0") == {"all-gather layer 0": 2 + 1 + 2}
    assert times(lower(small("dense", STAGES, KEPT), 4), "all-gather layer 0") == {"all-gather layer 0": 1}


def test_whole_gradients_take_four_bytes_a_parameter_beside_those_of_one_layer(small: Small) -> None:
    program = lower(small("dense", STAGES, KEPT), micro_batches=2)
    # In the second backward pass: all sums, and the bf16 gradients of the embedding before they are added.
    sums = 4 * (2 * LAYER + EMBEDDING)
    assert largest(program, "gradients") == sums + max(2 * EMBEDDING, 2 * LAYER)
    assert times(program, "sum layer 0") == {"sum layer 0": 2}


def test_gradients_that_are_reduced_in_bf16_add_up_where_they_are(small: Small) -> None:
    program = lower(small("dense", STAGES, KEPT, "training.fsdp.reduce_dtype=bf16"), micro_batches=2)
    assert not times(program, "sum")
    assert times(program, "reduce-scatter layer 1") == {"reduce-scatter layer 1": 1}
