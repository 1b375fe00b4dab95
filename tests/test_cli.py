import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from simulator.cli.main import app
from simulator.shipped import shipped

Rackcast = Callable[..., tuple[int, str, str]]
PROGRAM = [sys.executable, "-c", "from simulator.cli.main import run; run()"]
KIMI = "kimi-k3-lora-128xh200"
SMALL = "llama3-8b-fsdp2-2xh200"


@pytest.fixture
def rackcast(capsys: pytest.CaptureFixture[str]) -> Rackcast:
    """Runs the program and gives its exit status, standard output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app(list(arguments))
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


def scenario_file(folder: Path, old: str = "", new: str = "") -> Path:
    """The shipped Kimi scenario in *folder*, with *old* replaced."""
    text = shipped("scenarios", f"{KIMI}.yaml").read_text()
    assert old in text
    path = folder / "mine.yaml"
    path.write_text(text.replace(old, new))
    return path


def test_help_answers_in_a_third_of_a_second_of_cpu() -> None:
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*PROGRAM, "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.3


def test_heavy_libraries_wait_until_they_are_needed() -> None:
    code = "import sys, simulator.cli.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"matplotlib", "networkx", "numpy", "pyarrow", "pydantic", "rich", "ruamel.yaml", "simpy"} & set(loaded)


def test_version(rackcast: Rackcast) -> None:
    assert rackcast("--version") == (0, "rackcast 0.1.0\n", "")


def test_fit_says_that_a_job_fits(rackcast: Rackcast) -> None:
    status, out, err = rackcast("fit", KIMI, "--json")
    found = json.loads(out)
    assert status == 0
    # Of K3.1, one matrix is not published, and that is all there is to say.
    assert err.startswith("model kimi-k3.1: The indexer's query projection (wq_b) is assumed")
    assert len(err.splitlines()) == 1
    assert {"fits", "verdict", "memory", "suggestions"} <= found.keys()
    assert found["fits"] is True


def test_fit_ends_with_status_1_when_the_job_does_not_fit(rackcast: Rackcast) -> None:
    status, out, _ = rackcast("fit", "kimi-k3-full-finetune-128xh200", "--json")
    found = json.loads(out)
    assert (status, found["fits"], found["verdict"]) == (1, False, "does not fit")
    assert found["memory"]["hbm"]["peak_bytes"] > found["memory"]["hbm"]["capacity_bytes"]


def test_fit_shows_a_table(rackcast: Rackcast) -> None:
    status, out, err = rackcast("fit", SMALL)
    assert (status, err) == (0, "")
    assert "parameters" in out


def test_run_prints_one_json_object_and_writes_the_files(rackcast: Rackcast, tmp_path: Path) -> None:
    status, out, err = rackcast("run", SMALL, "--json", "--out", str(tmp_path / "new" / "out"))
    summary = json.loads(out)
    assert status == 0
    assert summary["scenario"] == SMALL
    assert summary["step_time_s"]["p10"] <= summary["step_time_s"]["p50"] <= summary["step_time_s"]["p90"]
    assert err.startswith("wrote ")
    written = {path.name for path in (tmp_path / "new" / "out").iterdir()}
    assert {"summary.json", "timeline.png", "memory.png", "trace.json.gz", "timeline.parquet"} <= written


def test_run_writes_into_a_folder_of_the_scenarios_name(
    rackcast: Rackcast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = rackcast("run", SMALL, "--set", "training.sequence_length=1024", "--no-fold")
    assert status == 0
    assert SMALL in out
    assert err.endswith(f"into out/{SMALL}\n")
    assert (tmp_path / "out" / SMALL / "summary.json").is_file()


def test_run_does_not_simulate_for_a_folder_that_cannot_be(rackcast: Rackcast, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"
    expected = f"cannot write into {out}: {tmp_path / 'file'} is a file\n"
    assert rackcast("run", KIMI, "--out", str(out)) == (2, "", expected)


def test_a_price_changes_the_cost(rackcast: Rackcast, tmp_path: Path) -> None:
    costs = []
    for price in ("2", "4"):
        arguments = ("run", SMALL, "--json", "--out", str(tmp_path), "--set", f"usd_per_accelerator_hour={price}")
        costs.append(json.loads(rackcast(*arguments)[1])["cost"]["usd_per_step"])
    assert costs[1] == pytest.approx(2 * costs[0])


def test_model_tells_what_is_understood(rackcast: Rackcast) -> None:
    status, out, err = rackcast("model", "llama-3.1-8b", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "model_type": "llama",
        "total_parameters": 8_030_261_248,
        "active_parameters": 8_030_261_248 - 128_256 * 4096,
        "bytes_bf16": 16_060_522_496,
        "layers": 32,
        "unknown_fields": [],
        "approximations": [],
    }


def test_model_reads_a_file_and_shows_what_it_does_not_know(rackcast: Rackcast, tmp_path: Path) -> None:
    config = json.loads(shipped("scenarios", "models", "llama-3.1-8b.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"wormhole_size": 3}))
    for path in (tmp_path, tmp_path / "config.json"):
        status, out, _ = rackcast("model", str(path))
        assert status == 0
        assert "8.03 B" in out
        assert "Nothing reads the field 'wormhole_size'." in out


def test_model_counts_a_folder_file_by_file_and_tells_what_is_none(rackcast: Rackcast, tmp_path: Path) -> None:
    for name in ("llama-3.1-8b", "kimi-k2"):
        (tmp_path / f"{name}.json").write_text(shipped("scenarios", "models", f"{name}.json").read_text())
    status, out, _ = rackcast("model", str(tmp_path), "--json")
    found = json.loads(out)
    assert (status, found["problems"]) == (0, [])
    totals = {name: one["total_parameters"] for name, one in found["models"].items()}
    assert totals == {"kimi-k2": 1_026_408_232_448, "llama-3.1-8b": 8_030_261_248}
    (tmp_path / "other.json").write_text("{}")
    status, out, _ = rackcast("model", str(tmp_path))
    assert status == 2
    assert "8.03 B" in out
    assert "other.json" in out.replace("\n", "")


@pytest.mark.parametrize("command", ["run", "fit"])
def test_a_guess_at_a_model_is_said_and_not_left_unsaid(rackcast: Rackcast, tmp_path: Path, command: str) -> None:
    config = json.loads(shipped("scenarios", "models", "llama-3.1-8b.json").read_text())
    strange = config | {"model_type": "nobody_knows", "num_hidden_layers": 2, "wormhole_size": 3}
    (tmp_path / "strange.json").write_text(json.dumps(strange))
    out = ("--out", str(tmp_path)) if command == "run" else ()
    status, _, err = rackcast(command, SMALL, "--set", f"model={tmp_path / 'strange.json'}", *out)
    assert status == 0
    assert "No reader knows the model_type 'nobody_knows'" in err
    assert "nothing reads wormhole_size" in err


def test_model_refuses_what_is_no_config(rackcast: Rackcast, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    status, out, err = rackcast("model", str(tmp_path / "config.json"))
    assert (status, out) == (2, "")
    assert f"{tmp_path / 'config.json'}" in err
    assert "Traceback" not in err


def test_an_unknown_model_is_refused(rackcast: Rackcast) -> None:
    status, out, err = rackcast("model", "llama-3.1-8", "--json")
    assert status == 2
    assert err.startswith(
        "no model 'llama-3.1-8' (did you mean 'llama-3.1-8b'?): neither a file nor one of the shipped"
    )
    assert json.loads(out) == {"error": "bad input", "problems": [{"message": err.strip()}]}


@pytest.mark.parametrize("kind", ["scenario", "accelerator", "node", "fabric", "curve"])
def test_schema_prints_a_json_schema(rackcast: Rackcast, kind: str) -> None:
    plain, asked = rackcast("schema", kind), rackcast("schema", kind, "--json")
    assert plain == asked
    assert (plain[0], plain[2]) == (0, "")
    jsonschema.Draft202012Validator.check_schema(json.loads(plain[1]))


def test_schema_is_of_the_scenario_unless_told_otherwise(rackcast: Rackcast) -> None:
    assert json.loads(rackcast("schema")[1])["title"] == "Scenario"


@pytest.mark.parametrize("command", ["fit", "run"])
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "  ep: 64",
            "  ep: 63",
            "18: parallel.ep: found 63, which does not divide dp_shard(128) * cp(1) * tp(1) = 128; nearest: 32 or 64",
        ),
        ("  ep: 64", "  ep: sixty", "18: parallel.ep: found 'sixty', expected an integer from 1 to 10,000,000"),
        (
            "  ep: 64",
            "  expert: 64",
            "18: parallel.expert: unknown key; allowed: cp, dp_replicate, dp_shard, ep, etp, pp, "
            "stage_layers, tp, virtual_pipeline",
        ),
        ("  ep: 64", "  ep: 64\n  ep: 32", "19: parallel.ep: duplicate key, first at line 18"),
        ("  ep: 64", "  ep: [64", "19: not YAML at column 9: expected ',' or ']', but got ':' while parsing a flow sequence"),  # noqa: E501
        ("recompute: full", "recompute: some", "23: training.recompute: found 'some', expected one of none, full or a mapping with every, keep, modules"),  # noqa: E501
    ],
)  # fmt: skip
def test_bad_input_is_told_with_file_and_line(
    rackcast: Rackcast, tmp_path: Path, command: str, old: str, new: str, expected: str
) -> None:
    path = scenario_file(tmp_path, old, new)
    assert rackcast(command, str(path)) == (2, "", f"{path}:{expected}\n")


def test_bad_input_as_json_is_one_object_too(rackcast: Rackcast, tmp_path: Path) -> None:
    path = scenario_file(tmp_path, "  ep: 64", "  ep: 0")
    status, out, err = rackcast("fit", str(path), "--json", "--set", "nam=x")
    where = {"file": str(path), "line": 18, "where": "parallel.ep"}
    message = "found 0, expected an integer from 1 to 10,000,000"
    first, second = json.loads(out)["problems"]
    assert status == 2
    assert first == {**where, "message": message}
    assert (second["file"], second["where"], "line" in second) == ("--set nam=x", "nam", False)
    assert err.startswith(f"{path}:18: parallel.ep: {message}\n--set nam=x: nam: unknown key; did you mean 'name'?")


@pytest.mark.parametrize(
    ("change", "where", "expected"),
    [
        ("model=nosuch", "model", "no model 'nosuch': neither a file nor one of the shipped: deepseek-v3,"),
        ("cluster.node=nosuch", "cluster.node", "no node 'nosuch': neither a file nor one of the shipped: atlas-910b,"),
        (
            "cluster.fabric=nosuch",
            "cluster.fabric",
            "no fabric 'nosuch': neither a file nor one of the shipped: atlas-950-superpods,",
        ),
        (
            "routing.trace=nosuch",
            "routing.trace",
            "no routing trace 'nosuch': neither a file nor one of the shipped: olmoe-",
        ),
    ],
)
def test_names_that_mean_nothing_are_bad_input(
    rackcast: Rackcast, tmp_path: Path, change: str, where: str, expected: str
) -> None:
    path = scenario_file(tmp_path)
    place = f"--set {change}"
    status, out, err = rackcast("run", str(path), "--set", change)
    assert (status, out) == (2, "")
    assert err.startswith(f"{place}: {where}: {expected}")


def test_what_model_and_split_refuse_has_a_line(rackcast: Rackcast, tmp_path: Path) -> None:
    path = scenario_file(tmp_path, "model: kimi-k3.1", "model: mixtral-8x7b")
    status, out, err = rackcast("run", str(path))
    assert (status, out) == (2, "")
    assert err.startswith(
        f"{path}:18: parallel.ep: found 64, which does not divide the model's 8 experts; nearest: 4 or 8"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fit"], "Missing argument 'SCENARIO'"),
        (["fit", KIMI, "--fast"], "No such option: --fast"),
        (["guess", KIMI], "No such command 'guess'"),
        (["run", KIMI, "--set"], "Option '--set' requires an argument"),
        (["schema", "disk"], "'disk' is not one of"),
    ],
)
def test_wrong_usage_is_told_without_a_traceback(rackcast: Rackcast, arguments: list[str], expected: str) -> None:
    status, out, err = rackcast(*arguments)
    assert (status, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err


def test_without_a_command_the_help_is_shown(rackcast: Rackcast) -> None:
    status, out, err = rackcast()
    assert status == 2
    assert "Commands:" in out + err


def test_progress_is_for_people_who_look(tmp_path: Path) -> None:
    master, slave = os.openpty()
    with subprocess.Popen(
        [*PROGRAM, "run", SMALL, "--json", "--out", tmp_path], stdout=subprocess.PIPE, stderr=slave
    ) as run:
        os.close(slave)
        shown = b""
        # Linux ends the reading of a terminal that nobody holds open any more with an error.
        with contextlib.suppress(OSError):
            while part := os.read(master, 65536):
                shown += part
        out, _ = run.communicate()
    os.close(master)
    assert "━" in shown.decode()
    assert json.loads(out)["scenario"] == SMALL


def test_a_closed_pipe_ends_the_program_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([*PROGRAM, "schema"], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")
