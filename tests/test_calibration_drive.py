import os
from dataclasses import replace

import pytest
from calibrated import MACHINE

from simulator.calibration import findings
from simulator.calibration.drive import measure_in
from simulator.calibration.drive_mount import find_drive
from simulator.calibration.node_file import node_tree
from simulator.calibration.plan import DRIVE, tables
from simulator.calibration.point import Point

MIB = 1 << 20


def machine_with(tmp_path, mounts, slaves):
    """Texts of /proc/mounts with folders in *tmp_path*, and a tree as of /sys/class/block."""
    kernel = tmp_path / "block"
    for device, members in slaves.items():
        for member in members:
            (kernel / device / "slaves" / member).mkdir(parents=True)
    lines = []
    for device, name in mounts.items():
        (tmp_path / name).mkdir()
        lines.append(f"/dev/{device} {tmp_path / name} ext4 rw,relatime 0 0\n")
    (tmp_path / "mounts").write_text("".join(lines))
    return find_drive(tmp_path / "mounts", kernel)


def test_a_partition_of_a_drive_is_found_and_another_disk_is_not(tmp_path):
    found = machine_with(tmp_path, {"sda1": "root", "nvme0n1p2": "scratch"}, {})
    assert (found.folder, found.drives) == (str(tmp_path / "scratch"), 1)
    assert found.capacity_bytes > 0


def test_an_array_counts_its_drives_also_beneath_a_volume(tmp_path):
    slaves = {"dm-0": ["md0"], "md0": ["nvme0n1", "nvme1n1", "nvme2n1p1", "nvme3n1"]}
    assert machine_with(tmp_path, {"dm-0": "data"}, slaves).drives == 4


def test_an_array_with_another_disk_is_no_drive(tmp_path):
    assert machine_with(tmp_path, {"md0": "data"}, {"md0": ["nvme0n1", "sda"]}) is None
    assert find_drive(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize(("way", "block", "under_way"), DRIVE)
def test_direct_requests_pass_over_a_file_that_is_gone_afterwards(tmp_path, way, block, under_way):
    try:
        os.close(os.open(tmp_path, os.O_RDWR | os.O_DIRECT | os.O_TMPFILE))
    except OSError:
        pytest.skip("the file system of temporary files takes no direct I/O")
    point = measure_in(str(tmp_path), way, block, under_way, size=32 * MIB)
    assert point.bytes == (block if under_way == 1 else 32 * MIB)
    assert 0 < point.low_s <= point.seconds <= point.high_s
    assert list(tmp_path.iterdir()) == []


def drive(way, block, under_way, bytes_, seconds):
    return Point("drive", way, (block, under_way), "bytes", 0.0, bytes_, seconds, seconds, seconds)


def test_rates_are_those_of_the_better_large_requests_and_waits_those_of_small_ones_alone():
    points = [
        drive("read", 4096, 1, 4096.0, 90e-6),
        drive("read", MIB, 32, 2e9, 0.5),
        drive("read", 2**16, 32, 2e9, 0.8),
    ]
    assert findings.drive_bytes_per_s(points, "read") == 4e9
    assert findings.drive_latency_s(points, "read") == 90e-6
    assert findings.drive_bytes_per_s(points, "write") is None


def test_a_calibrated_node_has_the_drives_that_were_measured():
    machine = replace(MACHINE, drives=2, drive_bytes=7_680_000_000_000)
    points = [drive(way, *how) for way in ("read", "write") for how in ((4096, 1, 4096.0, 25e-6), (MIB, 32, 2e9, 0.25))]
    tree, _ = node_tree("h200-sxm", "h200-sxm", points, machine)
    told = {name: (figure["value"], figure["grade"]) for name, figure in tree["nvme"].items()}
    assert told == {
        "drives": (2, "measured"),
        "capacity": ("7.68 TB", "measured"),
        "read": ("8 GB/s", "measured"),
        "write": ("8 GB/s", "measured"),
        "read_latency": ("25 us", "measured"),
        "write_latency": ("25 us", "measured"),
    }


def test_drives_are_measured_where_there_are_some():
    names = [{table.name for table in tables(quick=True, gpus=1, drives=drives)} for drives in (0, 1)]
    assert names[1] - names[0] == {"drive"}
