import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest
from small_jobs import write_small

from simulator.documents import InvalidDocument
from simulator.planner.case import Case, data_version, failed_row, make_case
from simulator.planner.over import sweep
from simulator.planner.store import Store
from simulator.planner.sweep import run_cases
from simulator.planner.workers import workers


def _scenario(tmp_path: Path) -> str:
    write_small(tmp_path)
    return str(tmp_path / "scenario-mixture.yaml")


def _cases(tmp_path: Path, count: int) -> list[Case]:
    small = write_small(tmp_path)
    found = []
    for number in range(count):
        scenario, folder = small("mixture", f"training.sequence_length={256 + 16 * number}")
        found.append(make_case(scenario, folder, {"case": number}, "version"))
    return found


def _a_loky_worker() -> int:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return next(int(pid) for pid in children if b"popen_loky" in Path(f"/proc/{pid}/cmdline").read_bytes())


def test_every_combination_is_a_row_and_a_failed_one_says_why(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    over = ["parallel.ep=1,2,3", "training.recompute=none,full"]
    with workers("local", 1) as pool:
        result = sweep(_scenario(tmp_path), [], over, store, pool)
    assert result["counted"] == {"cases": 6, "run": 4, "known": 0, "failed": 2}
    failed = [case for case in result["cases"] if case["error"]]
    assert {case["settings"]["parallel.ep"] for case in failed} == {"3"}
    assert "does not divide" in failed[0]["error"]
    rows = Store(tmp_path / "out").rows
    assert len(rows) == 6
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["cases.parquet"]


def test_time_left_is_told_once_every_worker_has_ended_one_since_the_start(tmp_path: Path) -> None:
    cases, store = _cases(tmp_path, 5), Store(tmp_path / "out")
    with workers("local", 1) as pool:
        assert pool.at_once == 1
        run_cases(cases[:2], store, pool)
        heard: list[tuple[int, int, float | None]] = []
        run_cases(cases, store, pool, lambda *told: heard.append(told))
    assert [told[:2] for told in heard] == [(2, 5), (3, 5), (4, 5), (5, 5)]
    assert [told[2] is None for told in heard] == [True, True, False, False]
    assert heard[-1][2] == 0.0


def test_of_what_fits_the_front_is_what_nothing_betters_in_everything(tmp_path: Path) -> None:
    over = ["training.recompute=none,full", "training.loss=plain,{chunk_tokens: 512}"]
    with workers("local", 1) as pool:
        result = sweep(_scenario(tmp_path), [], over, Store(tmp_path / "out"), pool)
    found = {tuple(case["settings"].values()): case for case in result["cases"]}
    fastest = min(found.values(), key=lambda case: case["step_time_s"])
    smallest = min(found.values(), key=lambda case: case["peak_bytes"])
    assert fastest["pareto"]
    assert smallest["pareto"]
    for case in found.values():
        others = [one for one in found.values() if one is not case]
        beaten = any(
            one["step_time_s"] <= case["step_time_s"] and one["peak_bytes"] <= case["peak_bytes"] for one in others
        )
        assert case["pareto"] != beaten


def test_duckdb_reads_the_results_of_a_sweep_also_while_it_runs(tmp_path: Path) -> None:
    store, out = Store(tmp_path / "out"), tmp_path / "out"
    with workers("local", 1) as pool:
        sweep(_scenario(tmp_path), [], ["parallel.ep=1,2"], store, pool)
    store.add([failed_row("more", '{"parallel.ep": "4"}', "no")])
    columns = "settings->>'parallel.ep', verdict, step_time_s > 0"
    found = duckdb.sql(f"select {columns} from '{out}/*.parquet' order by 1").fetchall()
    assert found == [("1", "fits", True), ("2", "fits", True), ("4", "failed", None)]


def test_what_is_known_is_not_run_again(tmp_path: Path) -> None:
    name = _scenario(tmp_path)
    with workers("local", 1) as pool:
        sweep(name, [], ["parallel.ep=1,2"], Store(tmp_path / "out"), pool)
        again = sweep(name, [], ["parallel.ep=2,4,2"], Store(tmp_path / "out"), pool)
    assert again["counted"] == {"cases": 2, "run": 1, "known": 1, "failed": 0}


def test_another_model_file_is_another_case(tmp_path: Path) -> None:
    write_small(tmp_path)
    before = data_version(tmp_path)
    model = tmp_path / "small-mixture.json"
    model.write_text(model.read_text().replace('"num_hidden_layers": 4', '"num_hidden_layers": 5'))
    assert data_version(tmp_path) != before


def test_over_is_read_as_a_whole_or_refused_as_a_whole(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    with workers("local", 1) as pool, pytest.raises(InvalidDocument) as refused:
        sweep(_scenario(tmp_path), [], ["parallel.ep", "a=1,,2", "b=1", "b=2"], store, pool)
    assert len(refused.value.problems) == 3


def test_values_in_brackets_are_one_value(tmp_path: Path) -> None:
    over = ["training.lora={rank: 8, targets: [attention, routed_expert]},{rank: 16}"]
    with workers("local", 1) as pool:
        result = sweep(_scenario(tmp_path), [], over, Store(tmp_path / "out"), pool)
    assert result["counted"]["run"] == 2


def test_a_part_that_was_left_by_a_kill_counts_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    store.add([failed_row("a", "{}", "one")])
    store.join()
    store.add([failed_row("a", "{}", "one"), failed_row("b", "{}", "two")])
    (tmp_path / "out" / ".part-c.parquet.1.tmp").write_bytes(b"half")
    assert sorted(Store(tmp_path / "out").rows) == ["a", "b"]


def test_a_killed_sweep_loses_nothing_and_runs_nothing_twice(tmp_path: Path) -> None:
    name, out = _scenario(tmp_path), tmp_path / "out"
    lengths = ",".join(str(256 + 16 * number) for number in range(24))
    arguments = ["plan", name, "--over", f"training.sequence_length={lengths}", "--jobs", "1", "--out", str(out)]
    command = [sys.executable, "-m", "simulator", *arguments]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while run.poll() is None and not list(out.glob("part-*.parquet")):
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    kept = set(Store(out).rows)
    assert 0 < len(kept) < 24
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = Store(out).rows
    assert len(rows) == 24
    assert kept < set(rows)


def test_a_killed_local_worker_is_replaced(tmp_path: Path) -> None:
    cases, killed = _cases(tmp_path, 6), []

    def kill_one(done: int, _total: int, _left_s: float | None) -> None:
        if done >= 1 and not killed:
            killed.append(_a_loky_worker())
            os.kill(killed[0], signal.SIGKILL)

    with workers("local", 2) as pool:
        rows = run_cases(cases, Store(tmp_path / "out"), pool, kill_one)
    assert killed
    assert {row["verdict"] for row in rows.values()} == {"fits"}
    assert len(rows) == 6


def test_a_dask_cluster_survives_the_loss_of_a_worker(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    import dask

    cases, killed = _cases(tmp_path, 6), []
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:

        def kill_one(done: int, _total: int, _left_s: float | None) -> None:
            if done >= 1 and not killed:
                killed.append(cluster.workers[0].process.pid)
                os.kill(killed[0], signal.SIGKILL)

        with dask.config.set({"scheduler-address": cluster.scheduler_address}), workers("dask", -1) as pool:
            rows = run_cases(cases, Store(tmp_path / "out"), pool, kill_one)
    assert killed
    assert {row["verdict"] for row in rows.values()} == {"fits"}
    assert len(Store(tmp_path / "out").rows) == 6
