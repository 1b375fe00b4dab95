import importlib.util
import json
import sys
from pathlib import Path

import pytest

from simulator.forecast.reading import open_any_scenario

FOLDER = Path(__file__).parent / "validation"
CASES_PATH = FOLDER / "h200-parallel" / "kimi-cases.json"
CASES = json.loads(CASES_PATH.read_text())


@pytest.fixture(scope="module")
def routing():
    sys.path.append(str(FOLDER))
    found = importlib.util.spec_from_file_location("kimi_routing", FOLDER / "kimi_routing.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    sys.path.remove(str(FOLDER))
    return module


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_trace_holds_what_the_run_is_made_to_choose(case: dict, routing) -> None:
    fields = routing.fields_of(case, CASES_PATH)
    held = json.loads((CASES_PATH.parent / "traces" / f"{case['trace']}.json").read_text())
    assert held == routing.trace(case, fields)
    # Each token of four layers goes to 16 different experts, of which there are 14 a card.
    assert [sum(rows) for rows in held["logical_count"]] == [16 * case["sequence"]] * 4
    assert max(max(rows) for rows in held["logical_count"]) <= case["sequence"]
    assert fields["num_experts"] == 14 * case["gpus"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_scenario_says_what_its_case_runs(case: dict) -> None:
    (path,) = CASES_PATH.parent.rglob(f"{case['id']}.yaml")
    scenario = open_any_scenario(str(path))[0].content
    training, split = scenario.training, scenario.parallel
    assert (path.parent / scenario.model).resolve() == CASES_PATH.parent / case["model"]
    assert (path.parent / scenario.routing.trace).resolve() == CASES_PATH.parent / "traces" / f"{case['trace']}.json"
    assert scenario.cluster.accelerators == split.dp_shard == split.ep == case["gpus"]
    assert training.sequence_length == case["sequence"]
    assert training.global_batch_sequences == case["gpus"] * case["micro_batch"]
    assert (training.recompute == "full") == case["recompute"]
    assert training.lora.rank == case["lora"]["rank"]
