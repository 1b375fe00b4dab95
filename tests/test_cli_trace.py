import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

SAVED = Path(__file__).parent / "traces"
RECORDINGS = Path(__file__).parents[1].parent / "shared" / "facts" / "routing"


def trace(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["trace", *arguments])
    return result.exit_code, result.stdout, result.stderr


def figures(*arguments: str) -> dict[str, object]:
    status, out, err = trace(*arguments, "--json")
    assert (status, err) == (0, "")
    found: dict[str, object] = json.loads(out)
    return found


def test_a_shipped_trace_by_its_name():
    found = figures("olmoe-github", "--ep", "16")
    assert (found["layers"], found["experts"], found["ep"]) == (3, 64, 16)
    assert found["expert_max_over_mean"] == pytest.approx((5.006 + 6.157 + 4.509) / 3, abs=0.001)
    layers = found["per_layer"]
    assert [layer["layer"] for layer in layers] == [0, 7, 15]
    assert found["rank_max_over_mean"] == pytest.approx(np.mean([layer["rank_max_over_mean"] for layer in layers]))
    assert layers[1]["hottest_expert"] == 17
    assert (found["top_k"], found["drift"], found["togetherness"], found["nodes_per_token"]) == (None,) * 4


def test_without_a_degree_a_node_shares_the_experts():
    assert figures("olmoe-github")["ep"] == 8
    assert figures(str(SAVED / "stat.pt"))["ep"] == 6


def test_a_folder_of_ranks_with_steps():
    found = figures(str(SAVED / "per_pass"))
    assert (found["trace"], found["windows"], found["source_ranks"]) == ("per_pass", 2, 2)
    assert found["drift"]["first_to_last"] == pytest.approx(0, abs=1e-12)
    assert [window["first_step"] for window in found["per_window"]] == [7, 8]


def test_a_trace_of_tokens_tells_where_they_are_sent():
    # Of four tokens, one has both experts on one of three ranks: 0 1, and the others on two.
    found = figures(str(SAVED / "per_token.pt"), "--ep", "3")
    assert (found["top_k"], found["ranks_per_token"], found["nodes_per_token"]) == (2, 1.75, 1.0)


@pytest.mark.parametrize(
    ("workload", "ep", "rank", "expert"),
    [
        ("prefill_in4096", 64, 3.77, 8.12),
        ("decode_in1000out1000", 64, 3.36, 5.56),
        ("decode_in500out1500", 64, 3.52, 5.76),
        ("prefill_in4096", 32, 3.04, 8.12),
    ],
)
def test_deepseek_v3_is_as_published(workload, ep, rank, expert):
    path = RECORDINGS / f"deepseek-v3_{workload}.json"
    if not path.is_file():
        pytest.skip(f"{path.name} is not beside this checkout; its licence does not let it be shipped")
    found = figures(str(path), "--ep", str(ep))
    assert (found["layers"], found["experts"]) == (58, 256)
    assert round(found["rank_max_over_mean"], 2) == rank
    assert round(found["expert_max_over_mean"], 2) == expert


def test_a_person_reads_a_sentence_facts_and_the_busiest_layers():
    status, out, _ = trace("olmoe-github", "--ep", "8")
    assert status == 0
    assert "Of 8 ranks the busiest gets 1.57 x the mean; the busiest expert 5.22 x." in out
    assert out.splitlines()[-3].split() == ["7", "2.14", "0", "6.16", "17", "0.58"]


def test_facts_of_tokens_and_steps_are_shown():
    assert "sent      to 1.75 ranks and 1.00 nodes a token" in trace(str(SAVED / "per_token.pt"), "--ep", "3")[1]
    assert "recorded  2 windows of steps, 1 wide, from 2 ranks" in trace(str(SAVED / "per_pass"))[1]


def test_a_chart_is_drawn_where_it_is_asked_for(tmp_path):
    status, _, err = trace("olmoe-c4", "--out", str(tmp_path / "new"))
    assert (status, err) == (0, f"wrote routing.png into {tmp_path / 'new'}\n")
    assert (tmp_path / "new" / "routing.png").read_bytes().startswith(b"\x89PNG")


def test_windows_of_steps_have_a_chart_of_their_own(tmp_path):
    steps = [[[4, 2, 1, 1]], [[1, 1, 2, 4]], [[2, 2, 2, 2]]]
    (tmp_path / "steps.json").write_text(json.dumps({"logical_count": steps}))
    status, _, err = trace(str(tmp_path / "steps.json"), "--ep", "2", "--out", str(tmp_path))
    assert (status, err) == (0, f"wrote routing.png and drift.png into {tmp_path}\n")
    assert (tmp_path / "drift.png").read_bytes().startswith(b"\x89PNG")
    windows = figures(str(tmp_path / "steps.json"), "--ep", "2")["per_window"]
    assert [(row["first_step"], row["hottest_rank"], row["rank_max_over_mean"]) for row in windows] == [
        (0, 0, 1.5), (1, 1, 1.5), (2, 0, 1.0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("olmoe-gihub",), "no routing trace 'olmoe-gihub' (did you mean 'olmoe-github'?)"),
        (("olmoe-c4", "--ep", "7"), "--ep: ep is 7, but it must divide the 64 experts: nearest are 4 and 8"),
        (("olmoe-c4", "--ep", "0"), "--ep: ep is 0"),
        ((str(SAVED / "make_torch_files.py"),), "is not JSON"),
        ((str(SAVED),), "is a folder without files of a recorder"),
    ],
)
def test_bad_input_ends_with_a_message_and_status_2(arguments, message):
    status, out, err = trace(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_file_name_with_a_hash(tmp_path):
    (tmp_path / "a#b.json").write_text('{"logical_count": [[1, 3]]}')
    assert figures(str(tmp_path / "a#b.json"))["trace"] == "a#b"
