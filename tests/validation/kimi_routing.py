"""Experts that a measured Kimi step's tokens choose, drawn ahead, and the routing traces that its scenarios name.

    python kimi_routing.py h200-parallel/kimi-cases.json TRACES

writes, for every case, the trace that it names, into the folder TRACES. Ranks and sequences draw alike.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from expert_draws import draws


def choices(case: dict[str, Any], fields: dict[str, Any]) -> npt.NDArray[np.int64]:
    """[layers with experts, tokens of a sequence, top_k]: what the model of *fields* is made to choose in *case*."""
    layers = fields["num_hidden_layers"] - fields["first_k_dense_replace"]
    experts, top = fields["num_experts"], fields["num_experts_per_token"]
    return draws(1, layers, case["sequence"], experts, top, case["skew"])[0]


def trace(case: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The same as a recording of how many rows each expert of each layer got."""
    experts = fields["num_experts"]
    counts = [np.bincount(layer.reshape(-1), minlength=experts).tolist() for layer in choices(case, fields)]
    return {
        "source": f"drawn for a measured step (expert_draws.py): {case['sequence']} tokens, skew {case['skew']}",
        "logical_count": counts,
    }


def fields_of(case: dict[str, Any], cases_path: Path) -> dict[str, Any]:
    """The model's fields, which a case names by a path from the cases' folder."""
    found: dict[str, Any] = json.loads((cases_path.parent / case["model"]).read_text())
    return found


def main() -> None:
    """Write all traces."""
    cases_path, folder = map(Path, sys.argv[1:3])
    for case in json.loads(cases_path.read_text()):
        content = trace(case, fields_of(case, cases_path))
        rows = ",\n  ".join(map(json.dumps, content["logical_count"]))
        text = f'{{\n "source": {json.dumps(content["source"])},\n "logical_count": [\n  {rows}\n ]\n}}\n'
        (folder / f"{case['trace']}.json").write_text(text)


if __name__ == "__main__":
    main()
