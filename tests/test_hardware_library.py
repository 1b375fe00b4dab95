"""The shipped files all load, and keep the conventions: dense FLOP/s, one direction, per accelerator."""

import csv
from pathlib import Path

import pytest

from simulator.documents import InvalidDocument
from simulator.hardware.library import build_cluster, load_accelerator, load_fabric, load_node, price
from simulator.shipped import shipped

SHARED = Path(__file__).parents[1].parent / "shared" / "facts" / "hardware.csv"
HERE = Path()


def names(folder):
    return sorted(path.stem for path in shipped("hardware_profiles", folder).glob("*.yaml"))


HOPPER_ALONE = {"flash2", "flash_triton"}
"""Kinds that no other part stands in for: a scenario that asks for one elsewhere is refused."""


@pytest.mark.parametrize("name", names("accelerators"))
def test_every_accelerator_loads_and_prices_every_kind(name):
    accelerator = load_accelerator(name, HERE)
    assert accelerator.id == name
    assert set(accelerator.curves) | HOPPER_ALONE == set(load_accelerator("h200-sxm", HERE).curves)
    own_or_named = {name, *accelerator.sheet.curves}
    assert {curve.part for curves in accelerator.curves.values() for curve in curves} <= own_or_named


@pytest.mark.parametrize("name", names("nodes"))
def test_every_node_loads_with_its_accelerator(name):
    node = load_node(name, HERE)
    assert load_accelerator(node.accelerator, HERE).id == node.accelerator
    assert set(node.scale_up.collectives) == {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}


@pytest.mark.parametrize("name", names("fabrics"))
def test_every_fabric_loads(name):
    assert load_fabric(name, HERE).reach_nodes >= 1


def test_h200_by_the_sheet():
    h200 = load_accelerator("h200-sxm", HERE)
    assert h200.peak_flops_per_s("bf16") == 989e12
    assert h200.peak_flops_per_s("fp8") == 1979e12
    assert h200.hbm_bandwidth_bytes_per_s == 4.8e12
    assert h200.hbm_capacity_bytes == 143771 * 2**20
    assert h200.launch_s("compiled") == pytest.approx(9.85e-6)


def test_the_grace_host_of_a_gb200_launches_as_slowly_as_it_was_timed():
    gb200, h200 = load_accelerator("gb200-nvl72", HERE), load_accelerator("h200-sxm", HERE)
    assert gb200.launch_s("fused") == pytest.approx(99.7e-6)
    for execution in ("eager", "compiled"):
        assert gb200.launch_s(execution) / h200.launch_s(execution) == pytest.approx(37.08 / 13.48, rel=0.01)


def test_links_count_one_direction():
    assert load_node("hgx-h200", HERE).scale_up.bandwidth.value == 450e9
    assert load_node("hgx-a100", HERE).scale_up.bandwidth.value == 300e9
    assert load_node("hgx-h200", HERE).nic.bandwidth.value == 50e9


def test_a_mesh_reaches_one_peer_at_a_seventh():
    links = load_node("atlas-910b", HERE).scale_up
    assert links.bandwidth.value == 7 * links.peer_bandwidth.value


def test_a_dual_die_package_is_one_accelerator():
    ascend = load_accelerator("ascend-910c", HERE)
    assert ascend.peak_flops_per_s("bf16") == 752e12
    assert ascend.hbm_capacity_bytes == 128e9


def test_an_unknown_name_lists_what_is_shipped_and_the_nearest():
    with pytest.raises(FileNotFoundError) as missing:
        load_node("hgx-h2000", HERE)
    assert "hgx-h200" in str(missing.value)
    assert "cloudmatrix-910c" in str(missing.value)


def test_a_broken_file_names_file_line_and_problem(tmp_path):
    good = shipped("hardware_profiles", "fabrics", "rail-fat-tree-400g.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(good.replace("nodes: 256", "nodes: 250"))
    with pytest.raises(InvalidDocument) as refused:
        load_fabric("mine", tmp_path)
    assert "mine.yaml:" in str(refused.value)
    assert "spine spans 250 nodes, not a multiple of the 32 of leaf" in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "name", "change", "says"),
    [
        ("fabrics", "rail-fat-tree-400g", ("value: 1,", "value: 0.5,"), "1"),
        ("nodes", "hgx-h200", ('peer_bandwidth: {value: "450 GB/s"', 'peer_bandwidth: {value: "900 GB/s"'), "above"),
        ("nodes", "hgx-h200", ("domain: 8", "domain: 12"), "not a multiple of the node's 8"),
        ("nodes", "hgx-h200", ("domain: 8", "domain: 72"), "beyond_node goes with"),
    ],
)
def test_impossible_machines_are_refused(tmp_path, kind, name, change, says):
    text = shipped("hardware_profiles", kind, f"{name}.yaml").read_text()
    assert change[0] in text
    (tmp_path / "mine.yaml").write_text(text.replace(*change))
    with pytest.raises(InvalidDocument) as refused:
        (load_fabric if kind == "fabrics" else load_node)("mine", tmp_path)
    assert says in str(refused.value)
    assert "mine.yaml:" in str(refused.value)


def test_a_file_of_ones_own_stands_beside_the_shipped(tmp_path):
    good = shipped("hardware_profiles", "nodes", "hgx-h200.yaml").read_text()
    (tmp_path / "half.yaml").write_text(
        good.replace("\naccelerators: 8", "\naccelerators: 4").replace(": 8\n", ": 4\n")
    )
    assert build_cluster("half", "single-node", 4, tmp_path).levels[0].size == 4


def test_curves_of_ones_own_go_before_the_shipped(tmp_path):
    (tmp_path / "accelerators").mkdir()
    (tmp_path / "measured" / "mine").mkdir(parents=True)
    sheet = shipped("hardware_profiles", "accelerators", "h100-sxm.yaml").read_text()
    (tmp_path / "accelerators" / "mine.yaml").write_text(sheet)
    curve = shipped("hardware_profiles", "measured", "h200-sxm", "copy.yaml").read_text()
    (tmp_path / "measured" / "mine" / "copy.yaml").write_text(curve.replace("part: h200-sxm", "part: mine"))
    mine = load_accelerator("accelerators/mine", tmp_path)
    assert [curve.part for curve in mine.curves["copy"]] == ["mine", "h200-sxm"]


def test_prices_are_dated_and_absent_where_none_was_found():
    h200 = price("h200-sxm")
    assert h200 is not None
    assert (h200.low, h200.high, h200.value, h200.date) == (2.5, 7.0, 4.75, "2026-05")
    assert price("mi325x").value == 1.95
    assert price("ascend-910c") is None


DRIVERS_BYTES_PER_S = {"b200-sxm": 7.67e12}
"""Where the driver reports a narrower bus than early sheets: pytorch/ao#4002."""


@pytest.mark.skipif(not SHARED.is_file(), reason="the fact tables that the files were written from are not here")
def test_no_accelerator_with_a_memory_rate_was_left_out():
    with SHARED.open() as file:
        rows = {row["id"]: row for row in csv.DictReader(file) if row["ds_mem_tbps"]}
    assert set(rows) <= set(names("accelerators"))
    for name, row in rows.items():
        accelerator = load_accelerator(name, HERE)
        rate = DRIVERS_BYTES_PER_S.get(name, float(row["ds_mem_tbps"]) * 1e12)
        assert accelerator.hbm_bandwidth_bytes_per_s == pytest.approx(rate)
        if row["ds_bf16_dense_tflops"]:
            assert accelerator.peak_flops_per_s("bf16") == pytest.approx(float(row["ds_bf16_dense_tflops"]) * 1e12)
