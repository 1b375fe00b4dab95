"""Scenarios of serving with parts below the card: what is read, refused, and told."""

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.documents import InvalidDocument
from simulator.forecast.errors import Refused
from simulator.forecast.reading import open_any_scenario, placing
from simulator.forecast.scenario_serving import ServingScenario
from simulator.forecast.serving.fitting import fit_serving
from simulator.forecast.serving.forecast import serve

DENSE = """\
name: dense
model: llama-3.1-8b
cluster: {node: hgx-h200, fabric: single-node, accelerators: 1}
serving:
  requests: {prompt_tokens: 500, output_tokens: 20, concurrency: 8, count: 16}
"""
MIXTURE = DENSE.replace("llama-3.1-8b", "qwen3-30b-a3b")


def summary(folder: Path, text: str, *changes: str) -> dict[str, Any]:
    path = folder / "served.yaml"
    path.write_text(text)
    document, _ = open_any_scenario(str(path), changes)
    assert isinstance(document.content, ServingScenario)
    with placing(document):
        return serve(document.content, folder).summary


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        (DENSE, ["offload.weights_on=nvme"], "no weights come up; leave it out, or weights"),
        (DENSE, ["offload.nvme.queue_depth=8"], "nothing is on drives"),
        (DENSE, ["offload.prefetch=2"], "nothing comes ahead"),
        (DENSE, ["offload.threads=2"], "cores compute nothing"),
        (DENSE, ["offload.experts=fetched"], "has no routed experts"),
        (DENSE, ["offload.kept_on_nvme=1 TB"], "drives keep what host memory lets go"),
        (MIXTURE, ["offload.experts_on_card=0.5"], "all experts are where other weights are"),
        (MIXTURE, ["offload.experts=cores"], "how fast those of HGX H200 multiply is not known; allowed: fetched"),
        (
            MIXTURE.replace("accelerators: 1", "accelerators: 2") + "parallel: {dp_replicate: 2, ep: 2}\n",
            ["offload.experts=fetched"],
            "found with ep 2",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, text: str, changes: list[str], message: str) -> None:
    with pytest.raises((Refused, InvalidDocument), match=message):
        summary(tmp_path, text, *(f"serving.{change}" for change in changes))


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (DENSE, "{weights: 1.0}"),
        (DENSE, "{weights: 0.5}"),
        (DENSE, "{weights: 1.0, weights_on: nvme}"),
        (DENSE, "{weights: 1.0, weights_on: nvme, nvme: {direct: true}}"),
        (DENSE, "{weights: 1.0, weights_on: nvme, nvme: {block: 64 KiB}}"),
        (DENSE, "{weights: 1.0, weights_on: nvme, nvme: {queue_depth: 1}}"),
        (DENSE, "{kv_cache: 1.0}"),
        (MIXTURE, "{experts: fetched}"),
        (MIXTURE, "{experts: fetched, experts_on_card: 0.5}"),
    ],
)
def test_every_field_changes_the_forecast(tmp_path: Path, text: str, change: str) -> None:
    plain, changed = (summary(tmp_path, text, *more) for more in ((), (f"serving.offload={change}",)))
    for found in (plain, changed):
        del found["engine"]
    assert json.dumps(plain) != json.dumps(changed)
    assert sum(changed["time"].values()) == pytest.approx(changed["duration_s"], rel=1e-6)
    assert sum(changed["provenance"].values()) == pytest.approx(1.0)


def test_a_loop_that_waits_for_its_host_says_so(tmp_path: Path) -> None:
    found = summary(tmp_path, DENSE, "serving.offload.weights=1")
    assert found["limited_by"] == "what comes from host memory, drives or the host's cores"
    # 32 layers of 436 MB at 55.43 GB/s for each token.
    assert found["tpot_s"]["p50"] == pytest.approx(32 * 436.2e6 / 55.43e9, rel=0.02)
    assert found["memory"]["ddr"]["breakdown"]["weights"] == pytest.approx(32 * 436.2e6, rel=1e-3)
    assert found["memory"]["hbm"]["breakdown"]["buffers of layers"] == pytest.approx(2 * 436.2e6, rel=1e-3)


def test_caches_in_host_memory_leave_room_on_the_card(tmp_path: Path) -> None:
    plain, away = (summary(tmp_path, DENSE, *more) for more in ((), ("serving.offload.kv_cache=1",)))
    sizes = [found["memory"]["hbm"]["cache"]["bytes_per_token"] for found in (plain, away)]
    # All 32 layers of 4,096 bytes, or the buffers of two.
    assert sizes == [32 * 4096, 2 * 4096]
    caches = away["memory"]["ddr"]["breakdown"]["caches"]
    assert caches == pytest.approx(16 * away["memory"]["hbm"]["breakdown"]["caches"])


def test_weights_that_host_memory_cannot_hold_do_not_fit(tmp_path: Path) -> None:
    text = DENSE.replace("llama-3.1-8b", "llama-3.1-405b")
    card, drives = (
        summary(tmp_path, text, f"serving.offload={{weights: 1.0, weights_on: {tier}}}") for tier in ("ddr", "nvme")
    )
    assert card["fits"]
    assert drives["memory"]["nvme"]["breakdown"]["weights"] == pytest.approx(801e9, rel=0.02)
    crowded = text.replace("accelerators: 1", "accelerators: 8") + "parallel: {dp_replicate: 8}\n"
    found = summary(tmp_path, crowded, "serving.offload.weights=1")
    # Eight copies of 802 GB in 1,536.
    assert not found["fits"]
    assert found["memory"]["ddr"]["peak_bytes"] > found["memory"]["ddr"]["capacity_bytes"] == 1.536e12 / 8


def test_more_than_a_node_has_cannot_be_kept(tmp_path: Path) -> None:
    found = summary(tmp_path, DENSE, "serving.offload.kept_in_ddr=2 TB")
    assert not found["fits"]
    assert found["memory"]["ddr"]["breakdown"] == {"kept caches": 2e12}


def test_nothing_is_suggested_that_host_memory_has_no_room_for(tmp_path: Path) -> None:
    path = tmp_path / "served.yaml"
    crowded = DENSE.replace("llama-3.1-8b", "llama-3.1-405b").replace("accelerators: 1", "accelerators: 8")
    path.write_text(crowded + "  offload: {weights: 1.0}\nparallel: {dp_replicate: 8}\n")
    document, _ = open_any_scenario(str(path), [])
    assert isinstance(document.content, ServingScenario)
    with placing(document):
        found = fit_serving(document.content, tmp_path)
    assert not found["fits"]
    # Eight copies of 203 GB in int4 have no room in 1,536; with tp 2 sixteen cards of two nodes have eight of 802.
    assert all("parallel.tp" in suggestion["change"] for suggestion in found["suggestions"])


def test_sequences_that_are_sent_back_are_kept(tmp_path: Path) -> None:
    crowd = (
        "serving.requests={prompt_tokens: 4000, output_tokens: 4000, concurrency: 400, count: 400}",
        "serving.max_sequences=400",
        "serving.offload.weights=1",
    )
    again, kept = (summary(tmp_path, DENSE, *crowd, *more) for more in ((), ("serving.offload.kept_in_ddr=200 GB",)))
    assert again["requests"]["preemptions"] > 0
    assert kept["memory"]["ddr"]["breakdown"]["kept caches"] > 0
    assert kept["duration_s"] < again["duration_s"]
