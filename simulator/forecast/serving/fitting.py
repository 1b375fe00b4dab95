"""Does a served model fit, and which changes would make it fit: smaller formats, fewer tokens, more accelerators.

Whether it fits is a matter of memory alone: the longest request must have room for its cache beside weights,
activations and buffers. Changes are not simulated; the smallest peak comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simulator.documents import InvalidDocument
from simulator.forecast.errors import Refused
from simulator.forecast.scenario_serving import ServingScenario
from simulator.forecast.serving.assembly import deploy
from simulator.forecast.serving.memory import serving_memory
from simulator.forecast.serving.pool import Pool
from simulator.forecast.serving.requests import Request, requests

MOST_TENSOR_PARALLEL = 16
_SMALLER = {"bf16": ("fp8", "int4"), "fp8": ("int4", "nvfp4"), "int8": ("int4",)}


def fit_serving(scenario: ServingScenario, folder: Path) -> dict[str, Any]:
    """Memory of *scenario* against capacity: the keys of `rackcast fit --json`."""
    wanted = requests(scenario.serving.requests, folder)
    pools = deploy(scenario, folder, wanted)
    found = {"scenario": scenario.name, **serving_memory(pools, wanted, None)}
    return found | {"suggestions": [] if found["fits"] else sorted(_suggestions(scenario, folder, wanted), key=_peak)}


def _peak(suggestion: dict[str, Any]) -> float:
    return float(suggestion["peak_bytes"])


def _suggestions(scenario: ServingScenario, folder: Path, wanted: list[Request]) -> Iterator[dict[str, Any]]:
    for change in _changes(scenario):
        pools = _pools(scenario, folder, change, wanted)
        if pools and all(pool.has_room for pool in pools):
            peak = serving_memory(pools, wanted, None)["memory"]["hbm"]["peak_bytes"]
            told = " ".join(f"{path}={value}" for path, value in change.items())
            yield {"change": told, "peak_bytes": peak, "step_time_s": None}


def _changes(scenario: ServingScenario) -> Iterator[dict[str, Any]]:
    serving, split = scenario.serving, scenario.parallel
    if serving.kv_cache == "bf16":
        yield {"serving.kv_cache": "fp8"}
    for smaller in _SMALLER.get(serving.weights, ()):
        yield {"serving.weights": smaller}
    for smaller in _SMALLER.get(serving.experts or "", ()):
        yield {"serving.experts": smaller}
    if serving.max_batch_tokens > serving.max_sequences:
        yield {"serving.max_batch_tokens": serving.max_sequences}
    factor = 2
    while serving.prefill is None and split.tp * factor <= MOST_TENSOR_PARALLEL:
        grown: dict[str, Any] = {
            "parallel.tp": split.tp * factor, "cluster.accelerators": scenario.cluster.accelerators * factor
        }  # fmt: skip
        yield grown | ({"parallel.ep": split.ep * factor} if split.ep > 1 else {})
        if split.ep == 1:
            yield grown | {"parallel.etp": split.etp * factor}
        factor *= 2


def _pools(scenario: ServingScenario, folder: Path, change: dict[str, Any], wanted: list[Request]) -> tuple[Pool, ...]:
    """Those of *scenario* with *change*; none where that does not go together."""
    content = scenario.model_dump(exclude_unset=True)
    for path, value in change.items():
        section, name = path.split(".")
        content.setdefault(section, {})[name] = value
    try:
        return deploy(ServingScenario.model_validate(content), folder, wanted)
    except (Refused, InvalidDocument):
        return ()
