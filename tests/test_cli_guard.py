import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import typer

from simulator.cli.guard import Answer, conclude
from simulator.forecast.errors import Refused


def fault() -> Answer:
    raise ZeroDivisionError("one\nover zero")


def status_of(body: object, as_json: bool = False) -> int:
    with pytest.raises(typer.Exit) as ended:
        conclude(body, as_json)  # type: ignore[arg-type]
    return ended.value.exit_code


def test_an_answer_is_printed_and_its_status_kept(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer({"a": 1.5}, lambda: "for people", 1)
    assert status_of(lambda: answer) == 1
    assert capsys.readouterr() == ("for people\n", "")
    assert status_of(lambda: answer, as_json=True) == 1
    assert capsys.readouterr() == ('{\n  "a": 1.5\n}\n', "")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_fault_is_one_line_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert status_of(fault, as_json) == 3
    (report,) = tmp_path.iterdir()
    line = f"fault in rackcast: ZeroDivisionError: one over zero; please report it with {report}"
    out, err = capsys.readouterr()
    assert err == f"{line}\n"
    assert report.read_text().startswith("Traceback (most recent call last):\n")
    assert (json.loads(out) if as_json else out) == (
        {"error": "fault", "problems": [{"message": line}]} if as_json else ""
    )


def test_a_figure_that_is_not_a_number_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert status_of(lambda: Answer({"step_time_s": float("nan")}, lambda: ""), as_json=True) == 3
    assert json.loads(capsys.readouterr().out)["error"] == "fault"


def test_a_refused_combination_is_bad_input_with_every_reason(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> Answer:
        raise Refused(["ep 64 needs experts", "bad \x1b[31m name"])

    assert status_of(body) == 2
    assert capsys.readouterr() == ("", "ep 64 needs experts\nbad \\x1b[31m name\n")


def test_a_full_disk_is_told_with_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> Answer:
        raise OSError(28, "No space left on device", "out/summary.json")

    assert status_of(body) == 2
    assert capsys.readouterr().err == "out/summary.json: No space left on device\n"


def test_a_full_standard_output_is_told() -> None:
    code = "import typer; from simulator.cli.guard import *; typer.run(lambda: conclude(lambda: Answer({}, str), True))"
    with open("/dev/full", "wb") as full:  # noqa: PTH123, a device
        ended = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (2, b"standard output cannot be written: No space left on device\n")


def test_ctrl_c_ends_with_130() -> None:
    code = (
        "import os, signal, time\n"
        "from simulator.cli.guard import conclude\n"
        "import typer\n"
        # A program that a shell starts in the background ignores the signal.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def body():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(10)\n"
        "typer.run(lambda: conclude(body, False))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
