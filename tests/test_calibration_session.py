import itertools
from dataclasses import replace

import pytest
from calibrated import MACHINE, STORED, plan, told

from simulator.calibration import session
from simulator.calibration.machine import NothingToMeasureError
from simulator.calibration.store import read


def run(folder, start, machine=MACHINE):
    heard = []
    return session.run(machine, folder, quick=True, hear=heard.append, start=start), heard


def test_what_processes_tell_is_stored_as_it_was(tmp_path):
    tables, heard = run(tmp_path, told)
    assert [table.name for table in tables] == [table.name for table in plan()]
    assert all(table.points == STORED[table.name].points for table in tables)
    assert sum(at.finished for at in heard) == len(plan())
    assert heard[-1].fraction == 1.0
    assert heard[-1].left_s == 0.0
    assert all(a.fraction <= b.fraction for a, b in itertools.pairwise(heard))


def test_a_run_that_was_killed_goes_on_with_the_table_that_it_was_at(tmp_path):
    asked = []

    def killed(tables, *more):
        for message in told(tables, *more):
            if message["table"] == "gemm" and "point" not in message:
                raise KeyboardInterrupt
            yield message

    def goes_on(tables, *more):
        asked.extend(table.name for table in tables)
        yield from told(tables, *more)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, killed)
    assert sorted(file.stem for file in tmp_path.iterdir()) == ["elementwise", "launch", "matrix_rows"]
    tables, _ = run(tmp_path, goes_on)
    assert asked[0] == "gemm"
    assert set(asked) == {table.name for table in plan()} - {"launch", "elementwise", "matrix_rows"}
    assert len(tables) == len(plan())
    asked.clear()
    run(tmp_path, goes_on)
    assert asked == []


def test_tables_of_other_gpus_and_libraries_are_measured_anew(tmp_path):
    asked = []

    def start(tables, *more):
        asked.append([table.name for table in tables])
        yield from told(tables, *more)

    run(tmp_path, start)
    asked.clear()
    run(tmp_path, start, replace(MACHINE, torch="9.9"))
    assert sum(map(len, asked)) == len(plan())
    asked.clear()
    run(tmp_path, start, replace(MACHINE, torch="9.9", gpus=4))
    assert asked == [["collectives", "interference"]]
    asked.clear()
    run(tmp_path, start, replace(MACHINE, torch="9.9", gpus=4, settings="NCCL_NVLS_ENABLE=0"))
    assert asked == [["collectives", "interference"]]


def test_half_a_file_is_no_table(tmp_path):
    run(tmp_path, told)
    whole = (tmp_path / "gemm.parquet").read_bytes()
    (tmp_path / "gemm.parquet").write_bytes(whole[: len(whole) // 2])
    assert read(tmp_path / "gemm.parquet") is None
    run(tmp_path, told)
    assert read(tmp_path / "gemm.parquet").points == STORED["gemm"].points


def test_what_did_not_run_is_kept_with_its_reason(tmp_path):
    def start(tables, *more):
        for message in told(tables, *more):
            if "shape_done" in message and message["table"] == "router":
                yield {"table": "router", "refused": {"shape": message["shape_done"], "why": "RuntimeError: too large"}}
            yield message

    tables, _ = run(tmp_path, start)
    router = next(table for table in tables if table.name == "router")
    assert len(router.refused) == 5
    assert tuple(router.refused[0]["shape"]) == (8192, 128, 8)


def test_a_process_that_fails_says_its_last_line(monkeypatch):
    monkeypatch.setattr(session.sys, "executable", "/bin/false")
    with pytest.raises(NothingToMeasureError, match="measuring launch failed"):
        list(session.processes(plan()[:1], MACHINE, True))
