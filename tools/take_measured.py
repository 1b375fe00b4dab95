"""Gives scenarios that wait for their run what it measured, and puts them among the measured cases.

python tools/take_measured.py RESULTS SOURCE

RESULTS is what `tests/validation/measure_step.py` or one like it wrote, SOURCE what the cases say of where it ran. Each
result whose id is a scenario of an `unmeasured` folder below tests/validation moves that scenario up, with a `measured`
block, and the model of its own that it may have. Runs that failed, and others, are told and left.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[1] / "tests" / "validation"
KEYS = ("peak_allocated_bytes", "peak_reserved_bytes", "first_step_peak_allocated_bytes")


def main() -> None:
    """Move every scenario that a line of the results measured."""
    results, source = Path(sys.argv[1]), sys.argv[2]
    waiting = {path.stem: path for path in CASES.glob("*/unmeasured/*.yaml")}
    for result in map(json.loads, results.read_text().splitlines()):
        path = waiting.get(result["id"])
        if path is None or "step_s" not in result:
            print(f"{result['id']}: {result.get('error', 'no scenario waits for it')}")
            continue
        (path.parents[1] / path.name).write_text(measured(path.read_text(), result, source))
        path.unlink()
        model = path.parent / "models" / f"{path.stem}.json"
        if model.is_file():
            (path.parents[1] / "models").mkdir(exist_ok=True)
            model.rename(path.parents[1] / "models" / model.name)


def measured(text: str, result: dict[str, Any], source: str) -> str:
    """The scenario *text* one folder up, with what *result* measured."""
    block = {"step_time_s": f"{result['step_s']:.6f}"} | {key: str(result[key]) for key in KEYS if key in result}
    lines = (f"  {key}: {value}\n" for key, value in block.items())
    return f'{text.replace(": ../", ": ")}measured:\n{"".join(lines)}  source: "{source}"\n'


if __name__ == "__main__":
    main()
