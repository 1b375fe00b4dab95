import json
from collections.abc import Callable
from pathlib import Path

import pytest
from small_jobs import SCENARIO, write_small

from simulator.cli.main import app

Validate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rackcast_validate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Validate:
    """Runs the command and gives its exit status, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app(["validate", *map(str, arguments)])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """Two cases: one measured in time, one in memory."""
    write_small(tmp_path)
    for path in tmp_path.glob("*.yaml"):
        path.unlink()
    for kind, measured in (("dense", "step_time_s: 0.02"), ("mixture", "peak_allocated_bytes: 2 GB")):
        text = SCENARIO.format(kind=kind) + f"measured: {{{measured}, source: a run}}\n"
        (tmp_path / f"case-{kind}.yaml").write_text(text)
    return tmp_path


def test_the_object_holds_every_case_and_the_errors(rackcast_validate: Validate, cases: Path) -> None:
    status, out, _ = rackcast_validate(cases, "--json")
    found = json.loads(out)
    assert (status, list(found)) == (0, ["cases", "median_abs_error", "worst_abs_error"])
    assert [(case["id"], case["metric"]) for case in found["cases"]] == [
        ("case-dense", "step_time_s"), ("case-mixture", "peak_allocated_bytes"),
    ]  # fmt: skip
    for case in found["cases"]:
        assert case["error"] == pytest.approx(case["predicted"] / case["measured"] - 1)
        assert found["worst_abs_error"][case["metric"]] == abs(case["error"])


def test_the_table_shows_figures_as_people_write_them(rackcast_validate: Validate, cases: Path) -> None:
    status, out, _ = rackcast_validate(cases)
    assert status == 0
    rows = [line.split() for line in out.splitlines() if line.strip()]
    assert rows[0] == ["case", "figure", "measured", "forecast", "error"]
    dense, mixture = rows[1], rows[2]
    assert dense[:4] == ["case-dense", "step", "20", "ms"]
    assert mixture[:4] == ["case-mixture", "allocated", "2", "GB"]
    assert dense[-1].endswith("%")
    assert dense[-1][0] in "+-"
    assert rows[3] == ["figure", "cases", "median", "error", "worst", "error"]
    assert [row[:2] for row in rows[4:]] == [["step", "1"], ["allocated", "1"]]


def test_places_without_cases_are_bad_input(rackcast_validate: Validate, cases: Path) -> None:
    status, out, err = rackcast_validate(cases / "nowhere", cases, cases / "none.yaml")
    assert (status, out) == (2, "")
    assert err.splitlines() == [
        f"{cases / name}: no such file, or a folder without scenarios (*.yaml)" for name in ("nowhere", "none.yaml")
    ]


def test_a_case_without_a_measurement_is_bad_input(rackcast_validate: Validate, cases: Path) -> None:
    path = cases / "case-dense.yaml"
    path.write_text(SCENARIO.format(kind="dense"))
    status, out, _ = rackcast_validate(path, "--json")
    (problem,) = json.loads(out)["problems"]
    assert (status, problem["file"], problem["where"]) == (2, str(path), "measured")
