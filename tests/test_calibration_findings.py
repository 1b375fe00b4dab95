from dataclasses import replace
from pathlib import Path

import pytest
from calibrated import MACHINE, STORED

from simulator.calibration import findings
from simulator.calibration.identity import identify
from simulator.calibration.point import Point
from simulator.calibration.stand_ins import as_public
from simulator.documents import load
from simulator.hardware.accelerator import AcceleratorSheet
from simulator.hardware.library import load_accelerator
from simulator.shipped import shipped

H200 = load_accelerator("h200-sxm", Path())
SHEETS = {
    file.stem: load(file, AcceleratorSheet)
    for file in shipped("hardware_profiles", "accelerators").glob("*.yaml")
    if file.stem in {"h200-sxm", "h100-sxm", "a100-80g-sxm", "a100-40g-sxm", "b200-sxm", "b200-sxm-simumax", "l40s"}
}


def timed(kind, name, seconds, bytes_=0.0):
    return Point(kind, name, (1,), "bf16", 0.0, bytes_, seconds, seconds, seconds)


def test_the_clock_is_a_small_kernel_alone_less_what_it_takes_among_others():
    points = [timed("launch", "small kernel, timed alone", 5e-6), timed("launch", "small kernel, profiled", 1e-6)]
    assert findings.clock_s(points) == pytest.approx(4e-6)
    assert findings.clock_s([]) == 3e-6


def test_a_collective_takes_what_a_kernel_loses():
    # 1.00 ms alone and 1.25 ms beside: a fifth is taken. Of 0.2, 0.5 and 0.1 the middle.
    times = {"a beside alone": 1.0, "a beside x": 1.25, "a beside y": 2.0, "b beside alone": 0.9, "b beside x": 1.0}
    points = [timed("interference", name, seconds * 1e-3) for name, seconds in times.items()]
    assert findings.compute_taken(points) == pytest.approx(0.2)
    assert findings.compute_taken([]) is None


def test_host_copies_by_the_largest_and_their_latency_by_the_middle():
    sizes = (2**20, 2**22, 2**24, 2**30)
    points = [
        timed("host_copy", f"pinned, {way}", size / 50e9 + (5e-6 if size < 2**30 else 0.0), float(size))
        for way in ("to the GPU", "to the host")
        for size in sizes
    ]
    assert findings.host_copy_bytes_per_s(points, "pinned, to the GPU") == pytest.approx(50e9)
    assert findings.host_copy_latency_s(points) == pytest.approx(5e-6)


def test_a_row_of_layers_keeps_most_of_the_rate():
    points = STORED["sustained"].points
    # Six products of 8192 x 4096 x 14336 took 7.67 ms in the row.
    share = findings.sustained(points, "gemm", H200)
    assert share == pytest.approx(6 * 2 * 8192 * 4096 * 14336 / 7.668592e-3 / 989e12 / 0.845, rel=0.08)
    assert findings.sustained(points, "copy", H200) is None


@pytest.mark.parametrize(
    ("gpu", "memory", "units", "part"),
    [
        ("NVIDIA H200", 150109880320, 132, "h200-sxm"),
        ("NVIDIA H100 80GB HBM3", 85e9, 132, "h100-sxm"),
        ("NVIDIA A100-SXM4-80GB", 85e9, 108, "a100-80g-sxm"),
        ("NVIDIA A100-SXM4-40GB", 42.4e9, 108, "a100-40g-sxm"),
        ("NVIDIA B200", 191e9, 148, "b200-sxm"),
        ("NVIDIA L40S", 48e9, 142, "l40s"),
        ("NVIDIA H100 PCIe", 85e9, 114, "h100-pcie"),
        ("NVIDIA GeForce RTX 7777", 24e9, 99, "geforce-rtx-7777"),
    ],
)
def test_a_gpu_by_what_it_calls_itself(gpu, memory, units, part):
    machine = replace(MACHINE, gpu=gpu, memory_bytes=int(memory), compute_units=units)
    assert identify(machine, SHEETS) == part


def test_own_kernels_carry_public_ones_over_by_their_ratio():
    own = [p for p in STORED["own_kernels"].points if p.kind == "kda"]
    twice = [replace(p, seconds=2 * (p.seconds - 4e-6) + 3e-6) for p in own]
    found = as_public(twice, own, H200, (3e-6, 4e-6))
    priced = {p: s.seconds for p, s in zip(own, as_public(own, own, H200, (4e-6, 4e-6)), strict=True)}
    for before, after in zip(own, found, strict=True):
        assert after.seconds - 3e-6 == pytest.approx(2 * (priced[before] - 4e-6))
