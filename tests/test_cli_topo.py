"""The command, end to end on small dumps of invented machines."""

import json
from pathlib import Path

from typer.testing import CliRunner

from simulator.cli.main import app

DUMPS = Path(__file__).parent / "data" / "topologies"


def topo(*arguments):
    return CliRunner().invoke(app, ["topo", *map(str, arguments)])


def test_json_tells_what_was_found_what_not_and_what_was_assumed():
    found = json.loads(topo(DUMPS / "nvidia-smi-switch.txt", "--json").stdout)
    assert found["accelerators"]["count"] == 4
    assert found["numa"] == {"NUMA node 0": ["GPU0", "GPU1"], "NUMA node 1": ["GPU2", "GPU3"]}
    assert found["groups"][0]["bandwidth_bytes_per_s"] is None
    assert "which GPU it is, and so the rate of a link" in found["unknown"]
    assert len(found["assumed"]) == 1


def test_naming_the_accelerator_tells_the_rates():
    found = json.loads(topo(DUMPS / "nvidia-smi-switch.txt", "--accelerator", "b200-sxm", "--json").stdout)
    assert found["groups"][0]["bandwidth_bytes_per_s"] == 900e9
    assert "which GPU it is, and so the rate of a link" not in found["unknown"]


def test_a_person_reads_the_answer_first():
    answer = topo(DUMPS / "nvidia-smi-pairs.txt")
    assert answer.stdout.startswith("4 accelerators, 2 groups of 2 joined by NVLink directly")


def test_a_scenario_runs_on_a_node_that_was_imported(tmp_path):
    wrote = topo(DUMPS / "nccl-switch.xml", "--accelerator", "h200-sxm", "--out", tmp_path / "mynode.yaml")
    assert wrote.exit_code == 0
    config = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1024, "max_position_embeddings": 2048,
    }  # fmt: skip
    (tmp_path / "tiny.json").write_text(json.dumps(config))
    (tmp_path / "job.yaml").write_text(
        "name: imported\nmodel: tiny\ncluster: {node: hgx-h200, fabric: rail-fat-tree-400g, accelerators: 8}\n"
        "parallel: {dp_shard: 8}\ntraining: {sequence_length: 512, global_batch_sequences: 8}\n"
    )
    arguments = [
        "run",
        str(tmp_path / "job.yaml"),
        "--set",
        "cluster.node=./mynode.yaml",
        "--out",
        str(tmp_path / "out"),
    ]
    run = CliRunner().invoke(app, [*arguments, "--json"])
    assert run.exit_code == 0
    assert json.loads(run.stdout)["step_time_s"]["p50"] > 0


def test_node_and_fabric_of_one_dump_stand_side_by_side(tmp_path):
    wrote = topo(
        DUMPS / "simai-two-servers.topo", "--accelerator", "h100-sxm", "--out", tmp_path / "mine.yaml", "--json"
    )
    files = [tmp_path / "mine.yaml", tmp_path / "mine-fabric.yaml"]
    assert json.loads(wrote.stdout)["files"] == [str(file) for file in files]
    assert all(file.is_file() for file in files)


def test_a_fabric_alone_is_written_as_such(tmp_path):
    assert topo(DUMPS / "ibnetdiscover-two-rails.out", "--out", tmp_path / "fabric.yaml").exit_code == 0
    assert "port_bandwidth" in (tmp_path / "fabric.yaml").read_text()


def test_the_network_for_astra_sim(tmp_path):
    file = tmp_path / "network.yml"
    assert topo(DUMPS / "nccl-switch.xml", "--astra", file).exit_code == 0
    assert "topology: [ Switch ]\nnpus_count: [ 4 ]\nbandwidth: [ 450.0 ]" in file.read_text()


def test_a_host_without_scale_up_links_has_the_rate_of_the_slot_of_its_accelerators(tmp_path):
    file = tmp_path / "network.yml"
    assert topo(DUMPS / "nvidia-smi-pairs.txt", "--accelerator", "a100-80g-sxm", "--astra", file).exit_code == 0
    # 16 lanes of 1.94 GB/s.
    assert "npus_count: [ 4 ]\nbandwidth: [ 31.04 ]" in file.read_text()
    assert "# Assumed: the rate of pcie, PCIe 4.0 with all lanes of a100-80g-sxm." in file.read_text()


def test_what_is_missing_is_named(tmp_path):
    for flag in ("--out", "--astra"):
        refused = topo(DUMPS / "nvidia-smi-switch.txt", flag, tmp_path / "file")
        assert refused.exit_code == 2
        assert "--accelerator NAME" in refused.stderr
    unknown = topo(DUMPS / "nvidia-smi-switch.txt", "--accelerator", "h20-sxm")
    assert unknown.exit_code == 2
    assert "did you mean" in unknown.stderr


def test_each_kind_of_dump_is_drawn_and_twice_the_same(tmp_path):
    for dump in sorted(DUMPS.iterdir()):
        assert topo(dump, "--png", tmp_path / "one.png").exit_code == 0
        assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    topo(dump, "--png", tmp_path / "two.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
