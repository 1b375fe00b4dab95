import json
from importlib.util import find_spec

import pytest
from calibrated import MACHINE, STORED, told
from typer.testing import CliRunner

from simulator.calibration import machine, plan, session
from simulator.calibration.machine import NothingToMeasureError
from simulator.cli.main import app

FEW = ("launch", "elementwise", "router")


def test_without_a_gpu_it_says_so_and_ends_as_bad_input(tmp_path, monkeypatch):
    def none():
        raise NothingToMeasureError("no GPU to measure: PyTorch 2.11, built for the CPU alone, sees none here")

    monkeypatch.setattr(machine, "find", none)
    ran = CliRunner().invoke(app, ["calibrate", "--output", str(tmp_path / "profiles")])
    assert ran.exit_code == 2
    assert "no GPU to measure" in ran.stderr
    assert not (tmp_path / "profiles").exists()


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is here, and perhaps a GPU")
def test_without_pytorch_it_says_what_to_install():
    with pytest.raises(NothingToMeasureError, match=r"needs PyTorch .* pip install 'rackcast\[calibrate\]'"):
        machine.find()


def test_a_run_tells_its_tables_and_where_its_files_are(tmp_path, monkeypatch):
    few = tuple(table for table in plan.tables(quick=True, gpus=1) if table.name in FEW)
    monkeypatch.setattr(machine, "find", lambda: MACHINE)
    monkeypatch.setattr(session, "tables", lambda **_: few)
    monkeypatch.setattr(session, "processes", told)
    ran = CliRunner().invoke(app, ["calibrate", "--quick", "--output", str(tmp_path), "--json"])
    assert ran.exit_code == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert (found["accelerator"], found["gpus"], found["refused"]) == ("h200-sxm", 2, 0)
    kinds = {fit["kind"] for fit in found["fits"]}
    assert kinds == {"fill", "cast_down", "cast_up", "copy", "elementwise", "softmax", "topk"}
    assert "elementwise: 13 shapes, 0 min 00 s left" in ran.stderr
    assert (tmp_path / "report.html").is_file()
    assert sorted(file.stem for file in (tmp_path / "measured" / "h200-sxm" / "points").iterdir()) == sorted(FEW)
    assert len(STORED["router"].points) == 15
