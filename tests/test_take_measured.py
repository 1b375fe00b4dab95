import runpy
from pathlib import Path

import pytest
from ruamel.yaml import YAML

TOOL = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "take_measured.py"))
SCENARIO = "name: one\nmodel: ../models/one.json\n"
RESULT = {"id": "one", "step_s": 0.25, "peak_allocated_bytes": 7}


def test_a_scenario_gets_what_was_measured_and_where() -> None:
    found = YAML(typ="safe").load(TOOL["measured"](SCENARIO, RESULT, 'own run, "two" H200'))
    assert found == {
        "name": "one",
        "model": "models/one.json",
        "measured": {"step_time_s": 0.25, "peak_allocated_bytes": 7, "source": 'own run, "two" H200'},
    }


def test_it_moves_up_with_its_model(tmp_path: Path) -> None:
    waiting = tmp_path / "unmeasured"
    (waiting / "models").mkdir(parents=True)
    (waiting / "one.yaml").write_text(SCENARIO)
    (waiting / "models" / "one.json").write_text("{}")
    TOOL["move"](waiting / "one.yaml", "name: one\n")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "models/one.json",
        "one.yaml",
    ]


def test_a_line_that_is_no_result_is_told_before_anything_moves() -> None:
    assert TOOL["read"]('{"id": "one", "step_s": 1}\n{"id": "two", "error": "out of memory"}\n') == [
        {"id": "one", "step_s": 1},
        {"id": "two", "error": "out of memory"},
    ]
    with pytest.raises(ValueError, match="line 2: Expecting"):
        TOOL["read"]('{"id": "one"}\n{"id": \n')
    with pytest.raises(ValueError, match="line 1 is no result"):
        TOOL["read"]("[1]\n")
