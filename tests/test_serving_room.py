"""Whether requests have room, as `fit`, `run` and their tables tell it."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from simulator.documents import InvalidDocument
from simulator.forecast.reading import open_any_scenario, placing
from simulator.forecast.scenario_serving import ServingScenario
from simulator.forecast.serving.fitting import fit_serving
from simulator.forecast.serving.forecast import serve
from simulator.report.serving_table import serving_table
from simulator.report.tables import fit_table

DENSE = """\
name: dense
model: llama-3.1-8b
cluster: {node: hgx-h200, fabric: single-node, accelerators: 2}
serving:
  requests: {prompt_tokens: 900, output_tokens: 60, concurrency: 8, count: 24}
"""
APART = ("serving.prefill={accelerators: 1}",)


def both(folder: Path, *changes: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `fit` and what `run` says."""
    path = folder / "served.yaml"
    path.write_text(DENSE)
    document, _ = open_any_scenario(str(path), changes)
    assert isinstance(document.content, ServingScenario)
    with placing(document):
        return fit_serving(document.content, folder), serve(document.content, folder).summary


def shown(renderable: Any) -> str:
    console = Console(width=120, record=True, file=StringIO())
    console.print(renderable)
    return console.export_text()


def test_each_batch_of_a_pipeline_has_its_part_of_the_room(tmp_path: Path) -> None:
    split = ("parallel.pp=2", "serving.requests.prompt_tokens=80000", "serving.memory_utilization=0.11")
    fit, run = both(tmp_path, *split)
    assert (fit["fits"], run["fits"], "duration_s" in run) == (False, False, False)
    # Two batches of 80,059 tokens, 5,004 blocks of 16, in 16 layers of 4,096 bytes.
    assert run["memory"]["hbm"]["breakdown"]["caches"] == 2 * 5004 * 16 * 16 * 4096
    assert run["memory"]["hbm"]["peak_bytes"] > run["memory"]["hbm"]["usable_bytes"]


def test_fit_refuses_requests_beyond_the_models_positions(tmp_path: Path) -> None:
    path = tmp_path / "served.yaml"
    path.write_text(DENSE)
    document, _ = open_any_scenario(str(path), ("serving.requests.prompt_tokens=200000", "parallel.dp_replicate=2"))
    assert isinstance(document.content, ServingScenario)
    with pytest.raises(InvalidDocument, match="found one of 200,060 tokens"), placing(document):
        fit_serving(document.content, tmp_path)


def test_accelerators_that_prefill_and_have_no_room_are_shown(tmp_path: Path) -> None:
    # Gate and up of two million tokens at once are 2 x 28,672 bytes each: 115 GB beside 16 GB of weights.
    fit, run = both(tmp_path, "serving.prefill={accelerators: 1, max_batch_tokens: 2000000}")
    assert not fit["fits"]
    assert run["memory"]["hbm"]["peak_bytes"] < run["memory"]["hbm"]["usable_bytes"]
    assert run["prefill_memory"]["hbm"]["peak_bytes"] > run["prefill_memory"]["hbm"]["usable_bytes"]
    assert "where prompts are computed, and serving.memory_utilization leaves" in shown(serving_table(run))
    assert "where prompts are computed at its peak" in shown(fit_table(fit))


def test_accelerators_that_prefill_hold_prompts_alone(tmp_path: Path) -> None:
    fit, _ = both(tmp_path, *APART)
    held = {key: fit[key]["hbm"]["breakdown"]["caches"] for key in ("memory", "prefill_memory")}
    # 959 tokens are 60 blocks of 16, 900 are 57, of 131,072 bytes a token.
    assert held == {"memory": 960 * 131_072, "prefill_memory": 912 * 131_072}


def test_prompts_that_wait_for_room_where_they_are_computed_make_it_tight(tmp_path: Path) -> None:
    # As in test_serving_forecast, 0.12 of the card leaves room for some 2,600 tokens: two prompts of 900.
    apart = "serving.prefill={accelerators: 1, max_batch_tokens: 8192}"
    _, run = both(tmp_path, apart, "serving.requests.output_tokens=1", "serving.memory_utilization=0.12")
    assert run["prefill_memory"]["hbm"]["breakdown"]["caches"] == 2 * 912 * 131_072
    assert run["verdict"] == "tight"
