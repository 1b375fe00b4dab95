"""What DeepSpeed's ZeRO-Offload adds to a step of ZeRO-2, against its blog on core binding (DeepSpeed @edaa722).

Qwen2.5-1.5B on two A100 of 40 GB with two EPYC 7742, four sequences each, mean of three runs: 240 ms without and 1,365
ms with the optimizer on the host, cores bound, so that a process has the 64 of a socket. The length of sequences is not
stated: what offloading adds does not depend on it. The mean is over the first 51 steps, and what the first one pins and
compiles is not simulated.
"""

import json
from pathlib import Path

import pytest

from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario

MODEL = {
    "model_type": "qwen2",
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32768,
}
SCENARIO = """\
name: zero-offload
model: model.json
cluster: {node: hgx-a100, fabric: single-node, accelerators: 2}
parallel: {dp_shard: 2}
training: {sequence_length: 512, micro_batch_sequences: 4, global_batch_sequences: 8, zero: 2, execution: eager}
"""
MEASURED_S = 1.365 - 0.240


def step_s(folder: Path, *changes: str) -> float:
    (folder / "model.json").write_text(json.dumps(MODEL))
    (folder / "scenario.yaml").write_text(SCENARIO)
    return float(forecast(*read_scenario(str(folder / "scenario.yaml"), changes)).summary["step_time_s"]["p50"])


@pytest.mark.parametrize("length", [256, 1024])
@pytest.mark.parametrize(("cores", "error"), [(64, -0.66), (1, 0.51)])
def test_time_that_it_adds(tmp_path: Path, length: int, cores: int, error: float) -> None:
    tokens = f"training.sequence_length={length}"
    away = f"training.offload={{optimizer: 1, threads: {cores}}}"
    added = step_s(tmp_path, tokens, away) - step_s(tmp_path, tokens)
    assert added / MEASURED_S - 1 == pytest.approx(error, abs=0.02)
