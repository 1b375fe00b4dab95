import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from calibrated import STORED

from simulator.documents import load
from simulator.hardware.collective import Timings
from simulator.shipped import shipped

TOOL = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "ship_collectives.py"))
SHIPPED = shipped("hardware_profiles", "measured", "h200-sxm", "collectives.yaml")


@pytest.fixture
def copy(tmp_path):
    path = tmp_path / "collectives.yaml"
    path.write_text(SHIPPED.read_text())
    return path


def test_what_is_not_longer_stays_as_it_was_written(copy):
    TOOL["write_runs"](copy, load(copy, Timings))
    assert copy.read_text() == SHIPPED.read_text()


def test_longer_runs_are_written_where_they_were(copy):
    known = load(copy, Timings)
    last = known.collectives["all_gather"][-1]
    longer = last.model_copy(update={"points": (*last.points, (2.0**31, 0.0051234)), "source": "both"})
    runs = (*known.collectives["all_gather"][:-1], longer)
    TOOL["write_runs"](copy, known.model_copy(update={"collectives": {**known.collectives, "all_gather": runs}}))
    assert load(copy, Timings).collectives == {**known.collectives, "all_gather": runs}
    assert "[536870912, 0.001395], [2147483648, 0.0051234]]" in copy.read_text()


def test_a_run_of_fewer_groups_is_told():
    old = STORED["collectives"]
    more = replace(old, points=(*old.points, *(replace(p, shape=(p.shape[0], 8)) for p in old.points)))
    assert TOOL["missing"](old, more) == [8]
    assert TOOL["missing"](more, old) == []
