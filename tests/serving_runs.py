"""Measured iterations of h200-serving as deployments: what `tests/validation/measure_decode.py` ran."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from simulator.hardware.library import build_cluster
from simulator.model.config import read_architecture
from simulator.parallel.mesh import Mesh
from simulator.program.serving.deployment import Deployment
from simulator.program.serving.iteration import Chunk, Iteration
from simulator.program.serving.offload import ServingOffload
from simulator.program.serving.pricer import IterationPricer
from simulator.shipped import shipped

FOLDER = Path(__file__).parent / "validation" / "h200-serving"
CASES: list[dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text())


def forecast_s(case: dict[str, Any]) -> float:
    """Seconds of an iteration of *case*."""
    whole = read_architecture(shipped("scenarios", "models") / f"{case['model']}.json")
    offload = ServingOffload(
        case.get("weights", 0.0),
        cache=case.get("cache", 0.0),
        experts=case.get("experts"),
        on_card=case.get("on_card", 0.0),
    )
    deployment = Deployment(
        replace(whole, layers=whole.layers[: case["layers"]]),
        build_cluster("hgx-h200", "single-node", 1, Path()),
        Mesh(),
        cuda_graphs=case["graph"],
        popularity=_popularity(case),
        offload=offload,
    )
    prompt, sequences = case.get("prompt", 0), case["sequences"]
    decode = () if prompt else (case["context"],) * sequences
    return (
        IterationPricer(deployment).price(Iteration((Chunk(prompt),) * sequences if prompt else (), decode)).latency_s
    )


def _popularity(case: dict[str, Any]) -> np.ndarray | None:
    """What the drawn choices make each expert's share, [layers, 1, experts]."""
    if "experts" not in case:
        return None
    experts, top_k = case["shape"]["experts"], case["shape"]["top_k"]
    module = _drawn()
    chosen = module.draws(case["iterations"] + 3, case["layers"], case["sequences"], experts, top_k, case["skew"])
    return np.broadcast_to(module.popularity(chosen, experts), (case["layers"], 1, experts))


def _drawn() -> ModuleType:
    found = importlib.util.spec_from_file_location("expert_draws", FOLDER.parent / "expert_draws.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
