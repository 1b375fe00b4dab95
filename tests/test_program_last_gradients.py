"""Gradients that are not as large, or not as short-lived, as the weights of their rank say."""

import json

import numpy as np
import pytest
from small_jobs import DENSE, MIXTURE, ScenarioInFolder, Small, lower, write_small

from simulator.engine.task import Allocation
from simulator.program.stage import StageProgram

VOCABULARY, HIDDEN = 2048, 1024
TABLE = VOCABULARY * HIDDEN
TWO = "parallel={dp_shard: 8, tp: 2}"
EMBEDDING = "gradient.root.model.embed_tokens.weight"
GPT_OSS = MIXTURE | {
    "model_type": "gpt_oss",
    "intermediate_size": 512,
    "num_local_experts": 16,
    "layer_types": ["full_attention"] * 4,
    "sliding_window": 128,
}


@pytest.fixture
def other(tmp_path):
    def read(config: dict[str, object], *overrides: str) -> ScenarioInFolder:
        small = write_small(tmp_path)
        (tmp_path / "other.json").write_text(json.dumps(config))
        return small("dense", "model=other.json", *overrides)

    return read


def taken(program: StageProgram) -> dict[str, Allocation]:
    return {one.key: one for task in program.tasks for one in task.allocates}


def released_in(program: StageProgram, key: str) -> str:
    return next(task.name for task in program.tasks if key in task.releases)


@pytest.mark.parametrize(("execution", "rows"), [("eager", VOCABULARY), ("compiled", VOCABULARY), ("fused", 1024)])
def test_dtensor_makes_the_gradient_of_a_split_embedding_whole(small: Small, execution: str, rows: int) -> None:
    program = lower(small("dense", TWO, f"training.execution={execution}"))
    assert taken(program)[EMBEDDING].bytes == 2 * rows * HIDDEN


@pytest.mark.parametrize(("execution", "rows"), [("compiled", VOCABULARY), ("fused", 1024)])
def test_a_tied_table_begins_with_the_gradient_of_the_head(other, execution: str, rows: int) -> None:
    program = lower(other(DENSE | {"tie_word_embeddings": True}, TWO, f"training.execution={execution}"))
    allocations = taken(program)
    # The rank's rows from the head; then the embedding's, whole or not, and the sum of both.
    assert allocations[EMBEDDING].bytes == 2 * TABLE / 2
    assert allocations[f"{EMBEDDING} again"].bytes == 2 * TABLE / 2
    behind = next(task for task in program.tasks if f"{EMBEDDING} again" in [one.key for one in task.allocates])
    assert sum(one.bytes for one in behind.allocates if ".scratch." in one.key) == 2 * rows * HIDDEN


def test_beneath_a_pipeline_the_whole_gradient_is_summed(small: Small) -> None:
    program = lower(small("dense", "parallel={dp_shard: 4, tp: 2, pp: 2}", "training.execution=compiled"), 2)
    assert np.max(taken(program)["summed.root"].bytes) == 4 * TABLE
    assert np.max(taken(program)["reduce.root"].bytes) == 4 * TABLE / 2


def test_the_gradient_that_is_registered_last_waits_for_the_result_of_the_reduction(small: Small, other) -> None:
    program = lower(small("mixture", "parallel={dp_shard: 16, ep: 8}"))
    begin = "gradient.layer 3.mlp.experts"
    assert released_in(program, f"{begin}.gate_proj") == "copy-in layer 3 experts"
    assert released_in(program, f"{begin}.down_proj") == "reduce-scatter layer 3 experts"
    biased = lower(other(GPT_OSS, "parallel={dp_shard: 16, ep: 8}"))
    assert released_in(biased, f"{begin}.down_proj") == "copy-in layer 3 experts"
    assert released_in(biased, f"{begin}.down_proj_bias") == "reduce-scatter layer 3 experts"


def test_where_one_rank_has_a_shard_no_gradient_waits(small: Small) -> None:
    program = lower(small("mixture", "parallel={dp_shard: 16, ep: 16}"))
    assert released_in(program, "gradient.layer 3.mlp.experts.down_proj") == "copy-in layer 3 experts"
