import json
from pathlib import Path
from typing import Any

import pytest

from simulator.documents import InvalidDocument
from simulator.forecast.reading import open_any_scenario, placing
from simulator.forecast.scenario_serving import ServingScenario
from simulator.forecast.serving.fitting import fit_serving
from simulator.forecast.serving.forecast import serve

DENSE = """\
name: dense
model: llama-3.1-8b
cluster: {node: hgx-h200, fabric: single-node, accelerators: 1}
serving:
  requests: {prompt_tokens: 900, output_tokens: 60, concurrency: 8, count: 24}
"""
MIXTURE = """\
name: mixture
model: qwen3-30b-a3b
cluster: {node: hgx-h200, fabric: rail-fat-tree-400g, accelerators: 8}
parallel: {dp_replicate: 4, tp: 2, ep: 8}
serving:
  requests: {prompt_tokens: 900, output_tokens: 60, concurrency: 64, count: 128}
"""


def _read(tmp_path: Path, text: str, *changes: str) -> tuple[ServingScenario, Any]:
    path = tmp_path / "served.yaml"
    path.write_text(text)
    document, _ = open_any_scenario(str(path), changes)
    assert isinstance(document.content, ServingScenario)
    return document.content, document


def _summary(tmp_path: Path, text: str, *changes: str) -> dict[str, Any]:
    scenario, document = _read(tmp_path, text, *changes)
    with placing(document):
        return serve(scenario, tmp_path).summary


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _summary(tmp_path_factory.mktemp("usual"), MIXTURE)


def test_what_is_asked_for_is_delivered(tmp_path: Path) -> None:
    found = _summary(tmp_path, DENSE)
    assert found["requests"]["simulated"] == found["requests"]["of"] == 24
    assert found["output_tokens_per_s"] * found["duration_s"] == pytest.approx(24 * 60)
    assert found["prompt_tokens_per_s"] * found["duration_s"] == pytest.approx(24 * 900)


def test_first_tokens_that_were_made_elsewhere_are_no_output(tmp_path: Path) -> None:
    found = _summary(tmp_path, DENSE, "serving.requests.prefilled=true")
    assert found["output_tokens_per_s"] * found["duration_s"] == pytest.approx(24 * 59)


def test_parts_of_the_time_add_up_to_the_loop(usual: dict[str, Any]) -> None:
    found = usual
    assert sum(found["time"].values()) == pytest.approx(found["duration_s"], rel=1e-6)
    assert sum(found["limits"].values()) == pytest.approx(1.0)
    assert sum(found["provenance"].values()) == pytest.approx(1.0)
    assert found["limited_by"]


def test_a_request_takes_its_first_token_and_all_further_ones(tmp_path: Path) -> None:
    found = _summary(tmp_path, DENSE, "serving.requests.concurrency=1", "serving.requests.count=1")
    whole = found["ttft_s"]["mean"] + 59 * found["tpot_s"]["mean"]
    assert found["latency_s"]["mean"] == found["duration_s"] == pytest.approx(whole)


def test_the_same_scenario_gives_the_same_forecast(tmp_path: Path) -> None:
    one, other = (_summary(tmp_path, DENSE, "serving.requests.least_share=0.5") for _ in range(2))
    del one["engine"]["wall_s"], other["engine"]["wall_s"]
    assert json.dumps(one) == json.dumps(other)


@pytest.mark.parametrize(
    "change",
    [
        "serving.weights=fp8",
        "serving.experts=fp8",
        "serving.kv_cache=fp8",
        "serving.block_tokens=256",
        "serving.requests.prompt_tokens=1000",
        "serving.requests.output_tokens=70",
        "serving.requests.least_share=0.7",
        "serving.requests.concurrency=32",
        "serving.requests.count=100",
        "serving.requests.cached_share=0.5",
        "serving.requests.prefilled=true",
        "serving.max_sequences=8",
        "serving.max_batch_tokens=1024",
        "serving.batching=prefill_first",
        "serving.receive_every=10",
        "serving.batch_wait={iterations: 5}",
        "serving.prefill_code=fused",
        "serving.front_end.request_s=0.1",
        "serving.front_end.token_s=1e-3",
        "serving.front_end={token_s: 1e-3, processes: 4}",
        "serving.memory_utilization=0.8",
        "serving.cuda_graphs=false",
        "serving.exchange=all_to_all",
        "serving.prefill_exchange=all_to_all",
        "serving.two_batch_overlap=true",
        "serving.prefill={accelerators: 8, parallel: {dp_replicate: 4, tp: 2, ep: 8}} cluster.accelerators=16",
        "parallel={dp_replicate: 8, ep: 8}",
        "routing.synthetic.sigma=1",
        "cluster.degraded={links: {scale_up: 0.5}}",
    ],
)
def test_every_field_changes_the_forecast(tmp_path: Path, usual: dict[str, Any], change: str) -> None:
    other = _summary(tmp_path, MIXTURE, *_several(change))
    assert {**usual, "engine": None} != {**other, "engine": None}


def test_prompts_are_cut_unless_told_otherwise(tmp_path: Path) -> None:
    # Of two prompts that are there together, an iteration has room for one and 100 tokens of the other.
    asked = [
        "serving.max_batch_tokens=1000",
        "serving.requests={prompt_tokens: 900, output_tokens: 2, concurrency: 2, count: 2}",
        "serving.front_end={request_s: 0, token_s: 0}",
    ]
    cut, whole = (_summary(tmp_path, DENSE, *asked, f"serving.chunked_prefill={said}") for said in ("true", "false"))
    assert whole["ttft_s"]["mean"] < cut["ttft_s"]["mean"]
    assert whole["iteration_s"]["with_prompts"]["iterations"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["max_batch_tokens=958"], "found 958, and a prompt of 959 tokens, and all of its answer"),
        (["max_batch_tokens=899", "admission=answer"], "found 899, and a prompt of 900 tokens, not cut"),
        (
            ["prefill={accelerators: 1, max_batch_tokens: 800}"],
            "prefill.max_batch_tokens: found 800, and a prompt of 900",
        ),
        (
            ["max_batch_tokens=958", "prefill={accelerators: 1}"],
            "serving.max_batch_tokens: found 958, and a prompt of 959 tokens, and all of its answer",
        ),
    ],
)
def test_prompts_that_are_not_cut_fit_an_iteration(tmp_path: Path, changes: list[str], message: str) -> None:
    accelerators = 2 if "prefill" in changes[-1] else 1
    text = DENSE.replace("accelerators: 1", f"accelerators: {accelerators}")
    with pytest.raises(InvalidDocument, match=message):
        _summary(tmp_path, text, "serving.chunked_prefill=false", *(f"serving.{change}" for change in changes))


def _several(change: str) -> list[str]:
    first, _, second = change.partition(" cluster.")
    return [first, f"cluster.{second}"] if second else [first]


def test_prefill_apart_hands_caches_over(tmp_path: Path) -> None:
    apart = "serving.prefill={accelerators: 8, parallel: {dp_replicate: 4, tp: 2, ep: 8}}"
    found = _summary(tmp_path, MIXTURE, apart, "cluster.accelerators=16")
    # 48 layers, of whose 4 key-value heads of 128 each of 2 ranks has 2: 128 prompts of 900 tokens from 4 such pairs.
    assert found["prefill"]["handed_over_bytes_per_accelerator"] == 128 / 4 * 900 * 48 * 2 * 2 * 128 * 2
    assert found["iteration_s"].keys() == {"decode"}
    assert found["requests"]["of"] == 128


def test_ranks_beyond_those_simulated_are_like_them(tmp_path: Path) -> None:
    text = MIXTURE.replace("accelerators: 8", "accelerators: 16").replace(
        "dp_replicate: 4, tp: 2, ep: 8", "dp_replicate: 16, ep: 16"
    )
    found = _summary(tmp_path, text)
    assert found["engine"]["ranks"] == 8
    assert found["requests"] | {"of": 128, "simulated": 64} == found["requests"]


def test_a_request_without_room_does_not_fit_and_smaller_formats_are_suggested(tmp_path: Path) -> None:
    text = DENSE.replace("llama-3.1-8b", "llama-3.1-70b")
    scenario, _ = _read(tmp_path, text)
    found = fit_serving(scenario, tmp_path)
    assert (found["fits"], found["verdict"]) == (False, "does not fit")
    changes = [suggestion["change"] for suggestion in found["suggestions"]]
    assert "serving.weights=fp8" in changes
    assert "parallel.tp=2 cluster.accelerators=2" in changes
    assert "duration_s" not in serve(scenario, tmp_path).summary


def test_sequences_that_wait_for_room_make_it_tight(tmp_path: Path) -> None:
    # Weights and the rest take 17.8 GB: 0.12 of 150.8 GB leave room for some 2,600 tokens of 131 kB.
    found = _summary(tmp_path, DENSE, "serving.memory_utilization=0.12")
    assert found["verdict"] == "tight"
    assert found["requests"]["waited_for_room"] > 0


def test_waits_are_of_the_whole_deployment(tmp_path: Path) -> None:
    text = DENSE.replace("accelerators: 1}", "accelerators: 1}\nparallel: {dp_replicate: 1}")
    one = _summary(tmp_path, text, "serving.memory_utilization=0.12")["requests"]
    eight = ["cluster.accelerators=8", "parallel.dp_replicate=8", "serving.memory_utilization=0.12"]
    # Each of eight engines that share nothing goes through what the one does.
    eight += ["serving.requests.concurrency=64", "serving.requests.count=192"]
    of_all = _summary(tmp_path, text, *eight)["requests"]
    assert (of_all["simulated"], of_all["of"]) == (24, 192)
    assert one["waited_for_room"] > 0
    assert of_all["waited_for_room"] == 8 * one["waited_for_room"]


def test_a_request_beyond_the_models_positions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match="found one of 200,060 tokens, the model takes at most 131,072"):
        _summary(tmp_path, DENSE, "serving.requests.prompt_tokens=200000")


def test_what_does_not_go_together_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument) as refused:
        _summary(tmp_path, DENSE, "serving.experts=fp8", "serving.two_batch_overlap=true", "routing.synthetic.sigma=1")
    assert sorted(problem.where for problem in refused.value.problems) == [
        "routing.synthetic",
        "serving.experts",
        "serving.two_batch_overlap",
    ]


def test_a_pipeline_serves_a_batch_for_each_stage(tmp_path: Path) -> None:
    split = ("cluster.accelerators=2", "parallel.pp=2")
    found = _summary(tmp_path, DENSE, *split)
    assert found["time"]["pipeline_s"] > 0
    assert found["requests"]["of"] == 24
    assert found["requests"]["simulated"] == 12


def test_ways_of_rows_that_do_not_travel_are_refused(tmp_path: Path) -> None:
    changes = ("parallel={dp_replicate: 4, tp: 2, ep: 2}", "serving.exchange=all_to_all")
    with pytest.raises(InvalidDocument, match="found all_to_all, but with ep x etp up to tp in parallel no rows are"):
        _summary(tmp_path, MIXTURE, *changes)
    apart = "serving.prefill={accelerators: 8, parallel: {dp_replicate: 4, tp: 2, ep: 2}}"
    changes = (apart, "cluster.accelerators=16", "serving.exchange=all_to_all")
    assert _summary(tmp_path, MIXTURE, *changes)["prefill"]["accelerators"] == 8
    with pytest.raises(InvalidDocument, match=r"prefill_exchange.*up to tp in serving.prefill.parallel no rows"):
        _summary(tmp_path, MIXTURE, *changes, "serving.prefill_exchange=all_to_all")


def test_a_prefix_cache_without_hashes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0,374,44\n")
    with pytest.raises(InvalidDocument, match=r"by their hash_ids, and no request of plain.csv has any; leave it out"):
        _summary(tmp_path, DENSE, "serving.requests={trace: plain.csv}", "serving.prefix_cache=true")


WIDE = MIXTURE.replace("accelerators: 8", "accelerators: 64").replace(
    "dp_replicate: 4, tp: 2, ep: 8", "dp_replicate: 64, ep: 64"
)


def test_few_requests_leave_experts_little_to_do(tmp_path: Path) -> None:
    few, many = (
        _summary(tmp_path, WIDE, f"serving.requests.concurrency={count}", "serving.requests.count=128")
        for count in (8, 64)
    )
    assert (few["engine"]["ranks"], many["engine"]["ranks"]) == (64, 8)
    assert (few["requests"]["simulated"], many["requests"]["simulated"]) == (128, 16)
    # Eight tokens choose 8 x 8 of 128 experts, two a rank; 64 choose nearly all.
    parts = [found["iteration_s"]["decode"]["parts"] for found in (few, many)]
    assert parts[0]["experts_s"] < 0.8 * parts[1]["experts_s"]
    assert few["tpot_s"]["p50"] < many["tpot_s"]["p50"]


def test_no_more_requests_than_there_are_are_under_way(tmp_path: Path) -> None:
    changes = ("cluster.accelerators=8", "parallel.dp_replicate=8")
    found = _summary(tmp_path, DENSE, *changes, "serving.requests.concurrency=64", "serving.requests.count=16")
    # Two for each of eight engines, of which one is simulated.
    assert found["requests"] | {"of": 16, "simulated": 2} == found["requests"]
