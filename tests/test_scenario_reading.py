import json
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from simulator.documents import InvalidDocument
from simulator.forecast.reading import find_scenario, open_any_scenario, read_scenario
from simulator.forecast.scenario import Scenario
from simulator.forecast.scenario_serving import ServingScenario
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
    document, folder = open_any_scenario(name)
    scenario = document.content
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
    model = ServingScenario if "serving" in document else Scenario
    jsonschema.Draft202012Validator(model.model_json_schema()).validate(json.loads(json.dumps(document)))


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


def test_a_folder_with_results_does_not_hide_the_scenario_they_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama3-8b-fsdp2-2xh200").mkdir()
    assert find_scenario("llama3-8b-fsdp2-2xh200").name == "llama3-8b-fsdp2-2xh200.yaml"


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
def test_every_axis_counts_towards_the_accelerators(axis: str) -> None:
    halved = (f"parallel.{axis}=2", "parallel.dp_shard=64", "parallel.ep=64")
    assert getattr(read_scenario(KIMI, halved)[0].parallel, axis) == 2
    (line,) = problems(KIMI, f"parallel.{axis}=2")
    degrees = " * ".join(f"{name}({2 if name == axis else 1})" for name in ("tp", "cp", "pp"))
    assert line.endswith(
        f"dp_replicate(1) * dp_shard(128) * {degrees} = 256, but the cluster has 128 accelerators; nearest: dp_shard 64"
    )


@pytest.mark.parametrize("axis", ["tp", "cp"])
def test_ep_borrows_from_tp_and_cp_too(axis: str) -> None:
    wide = (f"parallel.{axis}=2", "parallel.dp_shard=64", "parallel.ep=128")
    assert read_scenario(KIMI, wide)[0].parallel.ep == 128


def test_ep_does_not_borrow_from_pp() -> None:
    halved = ("parallel.pp=2", "parallel.dp_shard=64", "parallel.ep=128")
    assert problems(KIMI, *halved) == [
        "--set parallel.ep=128: parallel.ep: found 128, which does not divide dp_shard(64) * cp(1) * tp(1) = 64; "
        "nearest: 64"
    ]


def test_ep_times_etp_must_divide_what_they_borrow_from() -> None:
    assert read_scenario(KIMI, ["parallel.etp=2"])[0].parallel.etp == 2
    (line,) = problems(KIMI, "parallel.etp=4")
    assert line.endswith(
        "parallel.ep: found 64 * etp(4) = 256, which does not divide dp_shard(128) * cp(1) * tp(1) = 128; nearest: 32"
    )


def test_a_step_needs_a_workload() -> None:
    assert problems(KIMI, "routing.step=2") == [
        "--set routing.step=2: routing.step: found a step without a workload or drift; leave it out"
    ]


def test_a_trace_excludes_synthetic_routing() -> None:
    assert problems(KIMI, "routing.synthetic.sigma=1") == [
        "--set routing.synthetic.sigma=1: routing.synthetic: found trace and synthetic; allowed: one of "
        "trace, synthetic and workload"
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
        "parallel.ep",
        "training.global_batch_sequences",
    ]


def test_huge_degrees_are_refused_at_once() -> None:
    found = problems(
        KIMI, *(f"parallel.{axis}=10000000" for axis in ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep"))
    )
    assert len(found) == 2
    assert all("found 10000000" in line or "(10000000) * dp_shard(10000000)" in line for line in found)


def test_a_dense_scenario_needs_little(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(
        "name: small\nmodel: llama-3.1-8b\ncluster: {node: hgx-h200, fabric: single-node, accelerators: 1}\n"
        "training: {sequence_length: 4096, global_batch_sequences: 1}\n"
    )
    scenario, _ = read_scenario(str(path))
    assert scenario.parallel.dp_shard == 1
    assert scenario.training.fsdp.reduce_dtype == "fp32"
