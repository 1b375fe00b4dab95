import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.report.serving_comparison_chart import best
from simulator.report.serving_table import PARTS

SERVED = """\
name: served
model: llama-3.1-8b
cluster: {node: hgx-h200, fabric: single-node, accelerators: 1}
serving:
  requests: {prompt_tokens: 900, output_tokens: 60, concurrency: 8, count: 24}
measured: {ttft_s: 0.05, output_tokens_per_s_per_accelerator: 1000, source: nobody}
"""


@pytest.fixture
def served(tmp_path: Path) -> str:
    (tmp_path / "served.yaml").write_text(SERVED)
    return str(tmp_path / "served.yaml")


def _ask(*words: str, status: int = 0) -> str:
    answer = CliRunner().invoke(app, list(words))
    assert answer.exit_code == status, answer.output
    return answer.stdout


def test_run_writes_its_figures_and_two_charts(served: str, tmp_path: Path) -> None:
    found = json.loads(_ask("run", served, "--out", str(tmp_path / "out"), "--json"))
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "report.html",
        "summary.json",
        "loop.png",
        "iteration.png",
    }
    kept = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert kept["output_tokens_per_s"] == found["output_tokens_per_s"]
    assert found["time"].keys() == PARTS.keys()


def test_run_says_what_limits_it(served: str, tmp_path: Path) -> None:
    told = _ask("run", served, "--out", str(tmp_path / "out"))
    assert "first token" in told
    assert "limited by" in told
    assert all(len(line) <= Console().width for line in told.splitlines())


def test_what_is_of_training_is_refused(served: str, tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["run", served, "--out", str(tmp_path / "out"), "--no-fold"])
    assert told.exit_code == 2
    assert told.stderr == (
        f"{served}:4: serving: --no-fold is a check of how ranks that train are folded; leave it out\n"
    )
    assert not (tmp_path / "out").exists()


def test_the_same_loop_gives_the_same_charts(served: str, tmp_path: Path) -> None:
    for name in ("one", "other"):
        _ask("run", served, "--out", str(tmp_path / name))
    for file in ("loop.png", "iteration.png", "summary.json", "report.html"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()


def test_fit_answers_by_its_status(served: str) -> None:
    assert json.loads(_ask("fit", served, "--json"))["verdict"] == "fits"
    short = json.loads(_ask("fit", served, "--set", "model=llama-3.1-70b", "--json", status=1))
    assert short["suggestions"]
    assert "change that makes it fit" in _ask("fit", served, "--set", "model=llama-3.1-70b", status=1)


def test_run_of_what_does_not_fit_draws_nothing(served: str, tmp_path: Path) -> None:
    told = _ask("run", served, "--set", "model=llama-3.1-70b", "--out", str(tmp_path / "out"))
    assert "does not fit" in told
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["report.html", "summary.json"]


def test_loops_are_compared(served: str, tmp_path: Path) -> None:
    over = ("--over", "serving.requests.concurrency=1,8")
    rows = json.loads(_ask("compare", served, *over, "--json", "--png", str(tmp_path / "pace.png")))["rows"]
    assert [row["change"] for row in rows] == ["serving.requests.concurrency=1", "serving.requests.concurrency=8"]
    assert rows[0]["tpot_s"]["p50"] < rows[1]["tpot_s"]["p50"]
    assert (tmp_path / "pace.png").stat().st_size > 10_000
    assert "concurrency 8" in _ask("compare", served, *over)


def test_answers_of_one_token_are_drawn_where_prefill_is_apart(served: str, tmp_path: Path) -> None:
    apart = ("serving.prefill={accelerators: 1}", "cluster.accelerators=2", "serving.requests.output_tokens=1")
    words = [word for change in apart for word in ("--set", change)]
    assert "First token after" in _ask("run", served, *words, "--out", str(tmp_path / "out"))
    assert (tmp_path / "out" / "loop.png").stat().st_size > 10_000


def test_answers_of_one_token_have_no_pace(served: str) -> None:
    rows = json.loads(_ask("compare", served, "--over", "serving.requests.output_tokens=1", "--json"))["rows"]
    assert best([], rows) == "None of these makes further tokens"
    assert best([], [rows[0] | {"fits": False}]) == "None of these fits"


def test_a_trace_of_prefilled_answers_of_one_token_is_refused(served: str, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"timestamp": 0, "input_length": 9, "output_length": 1}\n')
    asked = "serving.requests={trace: one.jsonl, prefilled: true}"
    told = CliRunner().invoke(app, ["run", served, "--set", asked])
    assert told.exit_code == 2
    assert "answers of 1 token alone" in " ".join(told.stderr.split())


def test_training_and_serving_are_not_compared(served: str) -> None:
    told = CliRunner().invoke(app, ["compare", served, "llama3-8b-fsdp2-2xh200"])
    assert told.exit_code == 2
    assert "allowed: scenarios of one kind" in told.stderr


def test_measured_loops_are_judged(served: str) -> None:
    found = json.loads(_ask("validate", served, "--json"))
    assert [case["metric"] for case in found["cases"]] == ["ttft_s", "output_tokens_per_s_per_accelerator"]
    assert "first token" in _ask("validate", served)


def test_plans_are_of_training(served: str) -> None:
    told = CliRunner().invoke(app, ["plan", served])
    assert told.exit_code == 2
    assert "allowed: fit, run, compare and validate" in told.stderr
