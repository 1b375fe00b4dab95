import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from simulator.forecast.reading import read_scenario
from simulator.forecast.scenario import Scenario

settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.load_profile("steady")

Small = Callable[..., tuple[Scenario, Path]]

DENSE = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 4096,
    "vocab_size": 2048,
    "max_position_embeddings": 8192,
}
MIXTURE = DENSE | {
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
}
SCENARIO = """\
name: small-{kind}
model: small-{kind}
cluster: {{node: hgx-h200, fabric: rail-fat-tree-400g, accelerators: 16}}
parallel: {{dp_shard: 16}}
training: {{sequence_length: 2048, global_batch_sequences: 16}}
"""


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Scenarios of four-layer models, "dense" and "mixture", on two nodes of 8 H200, with overrides as `--set` takes."""
    folder = tmp_path_factory.mktemp("small")
    for kind, config in (("dense", DENSE), ("mixture", MIXTURE)):
        (folder / f"small-{kind}.json").write_text(json.dumps(config))
        (folder / f"scenario-{kind}.yaml").write_text(SCENARIO.format(kind=kind))

    def read(kind: str, *overrides: str) -> tuple[Scenario, Path]:
        return read_scenario(str(folder / f"scenario-{kind}.yaml"), overrides)

    return read
