"""vTrain's rows in place: steps of GPT models under Megatron-DeepSpeed on A100.

Of single nodes a random sample; of several nodes those of 64 accelerators, 3.6B parameters split in thirteen ways.
`tests/benchmarks/test_vtrain.py` forecasts all of the latter, up to 512 accelerators.
"""

import csv
import json
from pathlib import Path
from random import Random
from statistics import mean, median

import pytest

from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario

SHARED = Path(__file__).parents[1].parent / "shared" / "facts" / "ground_truth"
SINGLE, SEVERAL = SHARED / "vtrain_a100_single.csv", SHARED / "vtrain_a100_multi.csv"
SCENARIO = """\
name: row
model: {model}
cluster: {{node: hgx-a100, fabric: {fabric}, accelerators: {row[# GPUs]}}}
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


def error(row: dict[str, str], folder: Path, fabric: str) -> float:
    model = {"model_type": "gpt2", "vocab_size": 51200, "n_head": int(row["attention heads"])}
    model |= {"n_embd": int(row["hidden size"]), "n_layer": int(row["# layers"])}
    model |= {"n_positions": int(row["sequence length"])}
    (folder / "model.json").write_text(json.dumps(model))
    (folder / "row.yaml").write_text(SCENARIO.format(model="model.json", row=row, fabric=fabric))
    step_s = forecast(*read_scenario(str(folder / "row.yaml"))).summary["step_time_s"]["p50"]
    return step_s / float(row["iteration time (ms)"]) * 1e3 - 1


@pytest.mark.skipif(not SINGLE.is_file(), reason="the published rows are not here")
def test_a_sample_of_single_nodes(tmp_path):
    # Drawn, because the rows repeat a pattern of splits and batches: every twentieth is bound by the device.
    with SINGLE.open() as file:
        rows = Random(0).sample(list(csv.DictReader(file)), 36)
    errors = [abs(error(row, tmp_path, "single-node")) for row in rows]
    assert len(errors) == 36
    assert mean(errors) == pytest.approx(0.094, abs=0.01)
    assert median(errors) == pytest.approx(0.080, abs=0.01)


@pytest.mark.skipif(not SEVERAL.is_file(), reason="the published rows are not here")
def test_splits_over_eight_nodes(tmp_path):
    with SEVERAL.open() as file:
        rows = [row for row in csv.DictReader(file) if row["# GPUs"] == "64"]
    errors = [abs(error(row, tmp_path, "fat-tree-hdr-4-ports")) for row in rows]
    assert len(errors) == 13
    assert mean(errors) == pytest.approx(0.074, abs=0.01)
    assert median(errors) == pytest.approx(0.043, abs=0.01)
