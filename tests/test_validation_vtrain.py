"""vTrain's single-node rows, a random sample of them in place: steps of GPT models under Megatron-DeepSpeed on A100."""

import csv
import json
from pathlib import Path
from random import Random
from statistics import mean, median

import pytest

from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario

SHARED = Path(__file__).parents[1].parent / "shared" / "facts" / "ground_truth" / "vtrain_a100_single.csv"
SCENARIO = """\
name: row
model: {model}
cluster: {{node: hgx-a100, fabric: single-node, accelerators: {row[# GPUs]}}}
parallel:
  tp: {row[tensor parallelism]}
  dp_shard: {row[data parallelism]}
  pp: {row[pipeline parallelism]}
training:
  sequence_length: {row[sequence length]}
  micro_batch_sequences: {row[micro batch]}
  global_batch_sequences: {row[global batch]}
  zero: 1
  fsdp: {{reduce_dtype: bf16}}
  recompute: full
  execution: fused
  loss: vocab_parallel
  attention: unfused
  dropout: true
  sequence_parallel: false
"""


def error(row: dict[str, str], folder: Path) -> float:
    model = {"model_type": "gpt2", "vocab_size": 51200, "n_head": int(row["attention heads"])}
    model |= {"n_embd": int(row["hidden size"]), "n_layer": int(row["# layers"]), "n_positions": 1024}
    (folder / "model.json").write_text(json.dumps(model))
    (folder / "row.yaml").write_text(SCENARIO.format(model="model.json", row=row))
    step_s = forecast(*read_scenario(str(folder / "row.yaml"))).summary["step_time_s"]["p50"]
    return step_s / float(row["iteration time (ms)"]) * 1e3 - 1


@pytest.mark.skipif(not SHARED.is_file(), reason="the published rows are not here")
def test_a_sample_of_single_nodes(tmp_path):
    # Drawn, because the rows repeat a pattern of splits and batches: every twentieth is bound by the device.
    with SHARED.open() as file:
        rows = Random(0).sample(list(csv.DictReader(file)), 36)
    errors = [abs(error(row, tmp_path)) for row in rows]
    assert len(errors) == 36
    assert mean(errors) == pytest.approx(0.094, abs=0.01)
    assert median(errors) == pytest.approx(0.080, abs=0.01)
