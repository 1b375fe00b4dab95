from math import log
from pathlib import Path

import pytest

from simulator.hardware.accelerator import AcceleratorSheet
from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator, measured_parts, most_alike
from simulator.hardware.nearest import distance, nearest
from simulator.shipped import shipped

HERE = Path()


def sheet(bf16, bandwidth, units=None):
    def figure(value):
        return {"value": value, "source": "here", "grade": "assumed"}

    found = {
        "name": "x", "vendor": "y", "dense_flops_per_s": {"bf16": figure(bf16)},
        "hbm_capacity": figure("80 GB"), "hbm_bandwidth": figure(bandwidth),
        "kernel_launch": figure("5 us"), "framework_launch": figure("5 us"), "fused_launch": figure("5 us"),
        "kernel_gap": figure("1 us"),
    }  # fmt: skip
    return AcceleratorSheet.model_validate(found | ({"sm_count": figure(units)} if units else {}))


def test_distance_is_the_mean_of_logarithms_of_what_both_tell():
    one, other = sheet("100 TFLOP/s", "2 TB/s", 100), sheet("200 TFLOP/s", "2 TB/s")
    assert distance(one, one) == 0.0
    assert distance(one, other) == distance(other, one) == pytest.approx(log(2) / 2)
    assert nearest(one, {"b": other, "a": other, "c": one}) == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("given", "chain"),
    [
        (sheet("989 TFLOP/s", "4.8 TB/s", 132), ("h200-sxm", "h100-sxm")),
        (sheet("312 TFLOP/s", "2.0 TB/s", 108), ("a100-80g-sxm", "h200-sxm")),
        (sheet("2250 TFLOP/s", "8.0 TB/s", 148), ("b200-sxm", "h200-sxm")),
    ],
)
def test_a_gpu_is_priced_as_the_measured_part_most_like_it(given, chain):
    assert most_alike(given) == chain


def test_a_gpu_without_a_set_is_scaled(tmp_path):
    text = shipped("hardware_profiles", "accelerators", "h200-sxm.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("curves:")]
    lower = "\n".join(lines).replace('"4.8 TB/s"', '"4.32 TB/s"').replace('"989 TFLOP/s"', '"890.1 TFLOP/s"')
    (tmp_path / "mine.yaml").write_text(lower + "\n")
    mine, whole = load_accelerator("mine", tmp_path), load_accelerator("h200-sxm", HERE)
    assert set(mine.curves) >= measured_parts()["h200-sxm"]
    for kind, flops, bytes_ in (("copy", 0, 4.8e9), ("attention", 1e13, 1e6)):
        slow, fast = (kernel_time(part, kind, flops, bytes_, (32, 128, 8192)) for part in (mine, whole))
        assert (slow.grade, fast.grade) == ("scaled", "measured")
        assert slow.spread > fast.spread
        assert float(slow.seconds) == pytest.approx(float(fast.seconds) / 0.9, rel=0.01)
