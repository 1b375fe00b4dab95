"""Jobs small enough to lower and simulate in a moment: four layers on two nodes of eight H200."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from simulator.forecast.assembly import assemble_job
from simulator.forecast.reading import read_scenario
from simulator.forecast.scenario import Scenario
from simulator.program.stage import StageProgram
from simulator.program.training_step import TrainingStep

ScenarioInFolder = tuple[Scenario, Path]
Small = Callable[..., ScenarioInFolder]
"""Reads one of the small scenarios, named as in `MODELS`, with overrides as of `--set`."""

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
PREDICTING = MIXTURE | {"model_type": "small_predicting", "num_nextn_predict_layers": 2, "use_qk_norm": True}
VISION = {
    "depth": 3,
    "hidden_size": 256,
    "num_heads": 4,
    "intermediate_size": 1024,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 1024,
    "out_hidden_size": 1024,
    "deepstack_visual_indexes": [1],
}
SEEING = {"model_type": "qwen3_vl", "text_config": DENSE | {"head_dim": 128}, "vision_config": VISION}
TOWER = SEEING | {
    "vision_config": VISION | {"depth": 24, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096}
}
"""Whose first stage is the fullest even where it has the tower alone."""
SEEING_MIXTURE = {"model_type": "qwen3_vl_moe", "text_config": MIXTURE, "vision_config": VISION}
LATENT = MIXTURE | {
    "model_type": "deepseek_v3",
    "q_lora_rank": None,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "scoring_func": "sigmoid",
}
MODELS = {
    "dense": DENSE,
    "mixture": MIXTURE,
    "predicting": PREDICTING,
    "latent": LATENT,
    "seeing": SEEING,
    "seeing-mixture": SEEING_MIXTURE,
    "tower": TOWER,
}
DEVICE_BOUND = "training.micro_batch_sequences=32", "training.global_batch_sequences=512"
"""As many sequences as it takes for layers so small to be bound by the device, and not by the host's hooks and
launches."""
SCENARIO = """\
name: small-{kind}
model: small-{kind}
cluster: {{node: hgx-h200, fabric: rail-fat-tree-400g, accelerators: 16}}
parallel: {{dp_shard: 16}}
training: {{sequence_length: 2048, global_batch_sequences: 16}}
"""


def write_small(folder: Path) -> Small:
    """Write the models and scenarios into *folder*."""
    for kind, config in MODELS.items():
        (folder / f"small-{kind}.json").write_text(json.dumps(config))
        (folder / f"scenario-{kind}.yaml").write_text(SCENARIO.format(kind=kind))
    return lambda kind, *overrides: read_scenario(str(folder / f"scenario-{kind}.yaml"), overrides)


def lower(read: ScenarioInFolder, micro_batches: int = 1) -> StageProgram:
    """The program of a scenario."""
    return TrainingStep(assemble_job(*read)).programs(micro_batches)[0]
