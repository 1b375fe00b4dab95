import gzip
import json
import os
from pathlib import Path

import pytest
from report_sample import memory, origin, step, summary

from simulator.forecast.forecast import Forecast
from simulator.report import write_all
from simulator.report.files import folder, replacing

NAMES = ["report.html", "summary.json", "timeline.png", "memory.png", "trace.json.gz", "timeline.parquet"]


def forecast(**changes):
    timeline = step(layers=2)
    parts = {"timeline": timeline, "memory": memory(timeline), "summary": summary(timeline)}
    return Forecast(**{**parts, **changes})


def test_write_all_makes_the_folder_and_the_six_files(tmp_path):
    out = tmp_path / "new" / "out"
    assert write_all(forecast(), out, origin()) == [out / name for name in NAMES]
    assert sorted(path.name for path in out.iterdir()) == sorted(NAMES)


def test_two_writes_of_one_forecast_are_byte_identical_whatever_the_host_took(tmp_path):
    slow = forecast()
    slow.summary["engine"]["wall_s"] = 99.0
    write_all(forecast(), tmp_path / "a", origin())
    write_all(slow, tmp_path / "b", origin())
    for name in NAMES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_summary_has_sorted_keys_and_no_host_timings(tmp_path):
    write_all(forecast(), tmp_path, origin())
    written = json.loads((tmp_path / "summary.json").read_text())
    assert list(written) == sorted(written)
    assert written["engine"] == {
        "classes": 16,
        "events": 41200,
        "micro_batches": 1,
        "micro_batches_simulated": 1,
        "ranks": 128,
    }
    assert written["step_time_s"] == forecast().summary["step_time_s"]


def test_a_failure_leaves_every_old_file_and_no_other(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_text("old")
    broken = forecast(memory=None)
    with pytest.raises(TypeError):
        write_all(broken, tmp_path, origin())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"old"}


def test_a_file_in_the_way_of_the_folder_is_told(tmp_path):
    (tmp_path / "out").write_text("")
    for path in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(OSError, match=r"^cannot write into .*out.*: a file is in the way of this folder$"):
            folder(path)


def test_a_folder_in_the_way_of_a_file_is_told(tmp_path):
    (tmp_path / "summary.json").mkdir()
    with (
        pytest.raises(OSError, match=r"^cannot write .*summary\.json: is a directory$"),
        replacing(tmp_path / "summary.json"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told(tmp_path):
    (tmp_path / f".x.{os.getpid()}.tmp").symlink_to("/dev/full")
    with (
        pytest.raises(OSError, match=r"^cannot write .*x: no space left on device$"),
        replacing(tmp_path / "x") as file,
    ):
        file.write(b"1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_told(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match=r"permission denied$"), replacing(tmp_path / "x"):
        pass


def test_files_follow_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        write_all(forecast(), tmp_path, origin())
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_the_large_report_is_small_and_fast(benchmark, tmp_path):
    timeline = step(layers=93, micro_batches=8, pieces=4)
    large = Forecast(summary(timeline), timeline, memory(timeline))
    benchmark.pedantic(write_all, args=(large, tmp_path, origin()), rounds=1)
    assert len(timeline.name) == 40_929
    assert (tmp_path / "trace.json.gz").stat().st_size < 10e6
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == 3 * 40_929
