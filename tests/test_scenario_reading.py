import json
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from simulator.documents import InvalidDocument
from simulator.forecast.reading import read_scenario
from simulator.forecast.scenario import Scenario
from simulator.shipped import shipped

SHIPPED = sorted(path.stem for path in shipped("scenarios").glob("*.yaml"))
KIMI = "kimi-k3-lora-128xh200"


def problems(name: str, *overrides: str) -> list[str]:
    """What read_scenario says, a line a problem; the shipped Kimi scenario is called F."""
    with pytest.raises(InvalidDocument) as caught:
        read_scenario(name, overrides)
    return str(caught.value).replace(str(shipped("scenarios", f"{KIMI}.yaml")), "F").splitlines()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_scenario_reads_and_names_what_is_shipped(name: str) -> None:
    scenario, folder = read_scenario(name)
    assert scenario.name == name
    assert folder == shipped("scenarios")
    assert shipped("scenarios", "models", f"{scenario.model}.json").is_file()
    assert shipped("hardware_profiles", "nodes", f"{scenario.cluster.node}.yaml").is_file()
    assert shipped("hardware_profiles", "fabrics", f"{scenario.cluster.fabric}.yaml").is_file()
    if scenario.routing.trace:
        assert shipped("scenarios", "traces", f"{scenario.routing.trace}.json").is_file()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_scenario_passes_the_json_schema(name: str) -> None:
    document = YAML(typ="safe", pure=True).load(shipped("scenarios", f"{name}.yaml"))
    jsonschema.Draft202012Validator(Scenario.model_json_schema()).validate(json.loads(json.dumps(document)))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_scenario_says_in_comments_what_it_is(name: str) -> None:
    lines = shipped("scenarios", f"{name}.yaml").read_text().splitlines()
    assert all(line.startswith("#") for line in lines[:4])


def test_relative_names_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(shipped("scenarios", f"{KIMI}.yaml").read_text())
    scenario, folder = read_scenario(str(path), ["training.lora.rank=16"])
    assert (scenario.training.lora and scenario.training.lora.rank, folder) == (16, tmp_path)


def test_an_unknown_scenario_lists_the_shipped_ones() -> None:
    (line,) = problems("kimi-k3-lora-128xh20")
    assert line.startswith(f"no scenario 'kimi-k3-lora-128xh20' (did you mean '{KIMI}'?): neither a file nor one of")
    assert all(name in line for name in SHIPPED)


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "no/such/file"])
def test_an_odd_name_is_an_unknown_scenario(name: str) -> None:
    (line,) = problems(name)
    assert "neither a file nor one of the shipped" in line


def test_a_missing_file_is_called_so() -> None:
    assert problems("no/such/file.yaml") == ["no/such/file.yaml: no such file"]


def test_a_folder_is_no_scenario(tmp_path: Path) -> None:
    assert problems(str(tmp_path)) == [f"{tmp_path}: is a folder, expected a file"]


def test_degrees_must_multiply_to_the_accelerators() -> None:
    assert problems(KIMI, "parallel.dp_shard=96", "parallel.ep=32", "training.global_batch_sequences=192") == [
        "--set parallel.dp_shard=96: parallel.dp_shard: dp_replicate(1) * dp_shard(96) * tp(1) * cp(1) * pp(1) = 96, "
        "but the cluster has 128 accelerators; nearest: dp_shard 128"
    ]


def test_the_line_of_the_degree_is_told() -> None:
    (line,) = problems(KIMI, "cluster.accelerators=64")
    number, text = line.removeprefix("F:").split(": ", 1)
    assert shipped("scenarios", f"{KIMI}.yaml").read_text().splitlines()[int(number) - 1] == "  dp_shard: 128"
    assert text.endswith("= 128, but the cluster has 64 accelerators; nearest: dp_shard 64")


def test_replicas_that_do_not_divide_the_accelerators() -> None:
    found = problems(KIMI, "parallel.dp_replicate=3", "parallel.dp_shard=42", "parallel.ep=42")
    assert found[1].endswith("= 126, but the cluster has 128 accelerators; "
                             "nearest: dp_shard 42 on 126 accelerators or dp_shard 43 on 129 accelerators")  # fmt: skip


def test_ep_must_divide_the_ranks_that_share_experts() -> None:
    assert problems(KIMI, "parallel.ep=63") == [
        "--set parallel.ep=63: parallel.ep: found 63, which does not divide dp_shard(128) * cp(1) * tp(1) = 128; "
        "nearest: 32 or 64"
    ]
    assert problems(KIMI, "parallel.ep=200")[0].endswith("= 128; nearest: 128")


@pytest.mark.parametrize(("batch", "nearest"), [(500, "384 or 512"), (100, "128"), (513, "512 or 640")])
def test_the_global_batch_is_whole_micro_batches(batch: int, nearest: str) -> None:
    override = f"training.global_batch_sequences={batch}"
    assert problems(KIMI, override) == [
        f"--set {override}: training.global_batch_sequences: found {batch}, which is no multiple of dp_replicate(1) * "
        f"dp_shard(128) * micro_batch_sequences(1) = 128; nearest: {nearest}"
    ]


@pytest.mark.parametrize("axis", ["tp", "cp", "pp"])
def test_an_axis_that_is_not_simulated_is_refused(axis: str) -> None:
    found = problems(KIMI, f"parallel.{axis}=2", "parallel.dp_shard=64", "parallel.ep=64")
    assert found == [f"--set parallel.{axis}=2: parallel.{axis}: found 2, not simulated yet; allowed: 1"]


def test_etp_is_not_simulated_yet() -> None:
    assert problems(KIMI, "parallel.etp=2") == [
        "--set parallel.etp=2: parallel.etp: found 2, not simulated yet; allowed: 1"
    ]


def test_a_trace_excludes_synthetic_routing() -> None:
    assert problems(KIMI, "routing.synthetic.sigma=1") == [
        "--set routing.synthetic.sigma=1: routing.synthetic: found both trace and synthetic; allowed: one of the two"
    ]


def test_lora_targets_are_distinct() -> None:
    override = "training.lora.targets=[mlp, attention, mlp]"
    assert problems(KIMI, override) == [
        f"--set {override}: training.lora.targets: found mlp more than once; allowed: once each"
    ]


def test_all_arithmetic_is_told_at_once_in_order_of_lines() -> None:
    found = problems(KIMI, "cluster.accelerators=130", "training.micro_batch_sequences=7", "parallel.etp=4")
    assert [line.split(": ")[1] for line in found] == [
        "parallel.dp_shard",
        "training.global_batch_sequences",
        "parallel.etp",
    ]


def test_huge_degrees_are_refused_at_once() -> None:
    found = problems(
        KIMI, *(f"parallel.{axis}=10000000" for axis in ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep"))
    )
    assert len(found) == 5


def test_a_dense_scenario_needs_little(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(
        "name: small\nmodel: llama-3.1-8b\ncluster: {node: hgx-h200, fabric: single-node, accelerators: 1}\n"
        "training: {sequence_length: 4096, global_batch_sequences: 1}\n"
    )
    scenario, _ = read_scenario(str(path))
    assert scenario.parallel.dp_shard == 1
    assert scenario.training.fsdp.reduce_dtype == "fp32"
