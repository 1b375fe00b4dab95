import json
from pathlib import Path

import pytest
from small_jobs import write_small
from typer.testing import CliRunner

from simulator.cli.main import app


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    write_small(tmp_path)
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "scenario-dense.yaml")


def test_a_plan_is_one_object_with_files_beside_it(scenario: str, tmp_path: Path) -> None:
    out = tmp_path / "results"
    result = CliRunner().invoke(app, ["plan", scenario, "--json", "--out", str(out), "--simulate", "3", "--jobs", "1"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert {"splits", "counted", "winner"} <= set(found)
    assert {"parallel", "step_time_s", "peak_bytes", "usd", "verdict", "loses_by"} <= set(found["splits"][0])
    assert {"enumerated", "pruned", "simulated"} <= set(found["counted"])
    assert found["counted"]["simulated"] == 3
    assert sorted(path.name for path in out.iterdir()) == ["cases.parquet", "plan.png"]


def test_the_table_begins_with_the_winner_and_explains_the_rest(scenario: str) -> None:
    arguments = ["plan", scenario, "--simulate", "2", "--jobs", "1"]
    plain = CliRunner().invoke(app, arguments)
    explained = CliRunner().invoke(app, [*arguments, "--explain"])
    assert plain.exit_code == explained.exit_code == 0
    assert plain.stdout.splitlines()[0].endswith("on 16 cards")
    assert "pruned" not in "".join(plain.stdout.splitlines()[2:])
    assert len(explained.stdout.splitlines()) > len(plain.stdout.splitlines()) + 20
    assert Path("out/scenario-dense-plan/cases.parquet").exists()


def test_cards_may_be_changed_without_minding_the_split(scenario: str) -> None:
    arguments = ["plan", scenario, "--json", "--set", "cluster.accelerators=8", "--simulate", "1", "--jobs", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["accelerators"] == 8


def test_it_is_told_where_the_own_layout_is_no_candidate(scenario: str) -> None:
    told = "own layout is none of these splits"
    arguments = ["plan", scenario, "--set", "training.global_batch_sequences=128", "--simulate", "1", "--jobs", "1"]
    for setting, among in (("training.micro_batch_sequences=8", True), ("training.zero=2", False)):
        own = [*arguments, "--set", setting]
        found = CliRunner().invoke(app, [*own, "--json"])
        assert found.exit_code == 0, found.stderr
        assert json.loads(found.stdout)["own_among_splits"] == among
        assert (told in CliRunner().invoke(app, own).stdout) == (not among)


def test_bad_input_is_told_without_a_traceback(scenario: str) -> None:
    for change in ("cluster.accelerators=12", "cluster.node=hgx-h300", "training.zero=4"):
        result = CliRunner().invoke(app, ["plan", scenario, "--set", change])
        assert result.exit_code == 2
        assert change.partition("=")[0].split(".")[1] in result.stderr


def test_a_sweep_lists_its_cases(scenario: str) -> None:
    arguments = ["plan", scenario, "--over", "training.recompute=none,full", "--jobs", "1"]
    listed = CliRunner().invoke(app, [*arguments, "--json"])
    assert listed.exit_code == 0, listed.stderr
    cases = json.loads(listed.stdout)["cases"]
    assert [case["settings"] for case in cases] == [{"training.recompute": "none"}, {"training.recompute": "full"}]
    assert cases[0]["step_time_s"] < cases[1]["step_time_s"]
    again = CliRunner().invoke(app, arguments)
    assert "0 run, 2 known" in again.stdout
