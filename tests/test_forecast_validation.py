from pathlib import Path

import pytest
from small_jobs import SCENARIO, write_small

from simulator.documents import InvalidDocument
from simulator.forecast.forecast import forecast
from simulator.forecast.reading import open_any_scenario, read_scenario
from simulator.forecast.validation import Comparison, as_json, measured_cases, validate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The small models, without scenarios."""
    write_small(tmp_path)
    for path in tmp_path.glob("*.yaml"):
        path.unlink()
    return tmp_path


def case(folder: Path, name: str, measured: str = "", kind: str = "dense") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(SCENARIO.format(kind=kind) + measured)
    return path


def problems(caught: pytest.ExceptionInfo[InvalidDocument]) -> list[str]:
    return str(caught.value).splitlines()


def test_every_measured_figure_stands_beside_its_forecast(folder: Path) -> None:
    path = case(
        folder,
        "one",
        "measured: {step_time_s: 0.01, tokens_per_s_per_accelerator: 200000, peak_allocated_bytes: 2 GB, "
        "peak_reserved_bytes: 3 GB, source: a run}\n",
    )
    summary = forecast(*read_scenario(str(path))).summary
    found = validate([path])
    memory = summary["memory"]["hbm"]
    assert [(c.case, c.metric, c.measured, c.predicted) for c in found] == [
        ("one", "step_time_s", 0.01, summary["step_time_s"]["p50"]),
        ("one", "tokens_per_s_per_accelerator", 200_000, summary["tokens_per_s_per_accelerator"]),
        ("one", "peak_allocated_bytes", 2e9, memory["peak_bytes"] - memory["breakdown"]["context"]),
        ("one", "peak_reserved_bytes", 3e9, memory["reserved_bytes"]),
    ]
    assert (found[0].low, found[0].high) == (summary["step_time_s"]["p10"], summary["step_time_s"]["p90"])
    assert all((c.low, c.high) == (None, None) for c in found[1:])


def test_only_what_was_measured_is_compared(folder: Path) -> None:
    path = case(folder, "one", "measured: {peak_reserved_bytes: 3 GB, source: a run}\n")
    assert [c.metric for c in validate([path])] == ["peak_reserved_bytes"]


def test_an_error_is_positive_where_the_forecast_is_too_high() -> None:
    assert Comparison("a", "step_time_s", 2.0, 2.5).error == 0.25
    assert Comparison("a", "step_time_s", 2.0, 1.5).error == -0.25


def test_medians_and_worst_errors_are_told_by_figure() -> None:
    steps = [Comparison(str(n), "step_time_s", 1.0, predicted) for n, predicted in enumerate((1.1, 0.7, 1.2))]
    found = as_json([*steps, Comparison("0", "peak_allocated_bytes", 4.0, 3.0)])
    assert found["median_abs_error"] == pytest.approx({"step_time_s": 0.2, "peak_allocated_bytes": 0.25})
    assert found["worst_abs_error"] == pytest.approx({"step_time_s": 0.3, "peak_allocated_bytes": 0.25})
    assert found["cases"][3] == {
        "id": "0", "metric": "peak_allocated_bytes", "measured": 4.0, "predicted": 3.0, "error": -0.25,
    }  # fmt: skip
    assert as_json([]) == {"cases": [], "median_abs_error": {}, "worst_abs_error": {}}


def test_folders_are_searched_through_in_order(folder: Path) -> None:
    (folder / "b").mkdir()
    (folder / "a").mkdir()
    late, early, own = case(folder / "b", "1"), case(folder / "a", "2"), case(folder, "z")
    assert measured_cases([folder]) == [early, late, own]
    assert measured_cases([own, folder / "a"]) == [own, early]


def test_scenarios_that_wait_for_their_run_are_passed_over_unless_named(folder: Path) -> None:
    waiting = folder / "a" / "unmeasured"
    waiting.mkdir(parents=True)
    own, other = case(folder / "a", "1"), case(waiting, "2")
    assert measured_cases([folder]) == [own]
    assert measured_cases([waiting]) == [other]


def test_every_place_that_holds_no_case_is_told(folder: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(InvalidDocument) as caught:
        measured_cases([folder / "empty", case(folder, "one"), folder / "missing.yaml"])
    assert problems(caught) == [
        f"{folder / name}: no such file, or a folder without scenarios (*.yaml)" for name in ("empty", "missing.yaml")
    ]


def test_a_scenario_without_a_measurement_is_no_case(folder: Path) -> None:
    path = case(folder, "one")
    with pytest.raises(InvalidDocument) as caught:
        validate([path])
    (line,) = problems(caught)
    assert line.endswith("measured: missing; a case needs what a real run showed")
    assert line.startswith(str(path))


def test_a_case_that_cannot_be_simulated_is_told_with_its_place(folder: Path) -> None:
    path = case(folder, "one", "measured: {step_time_s: 1, source: a run}\nrouting: {synthetic: {sigma: 1}}\n")
    with pytest.raises(InvalidDocument) as caught:
        validate([path])
    (line,) = problems(caught)
    assert line.startswith(f"{path}:7: routing.synthetic: llama has no routed experts")


def test_progress_names_each_case(folder: Path) -> None:
    paths = [case(folder, name, "measured: {step_time_s: 1, source: a run}\n") for name in ("one", "two")]
    heard: list[tuple[str, float]] = []
    validate(paths, lambda stage, share: heard.append((stage, share)))
    assert heard == [("one", 0.0), ("two", 0.5)]


def test_shipped_cases_are_found_and_measured() -> None:
    paths = measured_cases([])
    assert len(paths) > 50
    assert all(open_any_scenario(str(path))[0].content.measured for path in paths[::10])
