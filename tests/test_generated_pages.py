import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.forecast.reading import read_scenario

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "docs" / "scenario.schema.json"
STALE = "out of date; run `make docs`"


def test_the_schema_for_editors_is_in_step_with_the_code() -> None:
    assert SCHEMA.read_text() == CliRunner().invoke(app, ["schema"]).output, STALE


def test_the_table_of_scenario_fields_is_in_step_with_the_code() -> None:
    command = [sys.executable, str(ROOT / "tools" / "scenario_fields.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "scenario.md").read_text() == printed, STALE


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_editor_finds_nothing_wrong_with_a_shipped_scenario(path: Path) -> None:
    found = YAML(typ="safe").load(path.read_text())
    assert list(Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(found)) == []


def test_the_scenario_that_the_readme_shows_can_be_used(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "shown.yaml").write_text(shown)
    scenario, _ = read_scenario(str(tmp_path / "shown.yaml"))
    assert scenario.name in shown
