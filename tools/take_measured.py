"""Gives scenarios that wait for their run what it measured, and puts them among the measured cases.

python tools/take_measured.py RESULTS SOURCE

RESULTS is what `tests/validation/measure_step.py` or one like it wrote, SOURCE what the cases say of where it ran. Each
result whose id is a scenario of an `unmeasured` folder below tests/validation moves that scenario up, with a `measured`
block, and the model of its own that it may have. Runs that failed, and others, are told and left. All of RESULTS is
read before anything moves.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[1] / "tests" / "validation"
KEYS = ("peak_allocated_bytes", "peak_reserved_bytes", "first_step_peak_allocated_bytes")


def main() -> None:
    """Move every scenario that a line of the results measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("source")
    asked = parser.parse_args()
    try:
        results = read(asked.results.read_text())
    except (OSError, ValueError) as error:
        parser.error(f"{asked.results}: {error}")
    waiting = {path.stem: path for path in CASES.glob("*/unmeasured/*.yaml")}
    for result in results:
        if "step_s" not in result:
            print(f"{result['id']}: {result.get('error', 'nothing was measured')}")
        elif path := waiting.pop(result["id"], None):
            move(path, measured(path.read_text(), result, asked.source))
        else:
            print(f"{result['id']}: no scenario waits for it")


def read(text: str) -> list[dict[str, Any]]:
    """The results in *text*, one a line. Raise :exc:`ValueError` for a line that is none."""
    results = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            result = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(result, dict) or "id" not in result:
            raise ValueError(f"line {number} is no result: it has no id")
        results.append(result)
    return results


def move(path: Path, text: str) -> None:
    """Put the scenario at *path* one folder up, as *text*, with a model of its own."""
    (path.parents[1] / path.name).write_text(text)
    path.unlink()
    model = path.parent / "models" / f"{path.stem}.json"
    if model.is_file():
        (path.parents[1] / "models").mkdir(exist_ok=True)
        model.rename(path.parents[1] / "models" / model.name)


def measured(text: str, result: dict[str, Any], source: str) -> str:
    """The scenario *text* one folder up, with what *result* measured."""
    block = {"step_time_s": f"{result['step_s']:.6f}"} | {key: str(result[key]) for key in KEYS if key in result}
    lines = (f"  {key}: {value}\n" for key, value in block.items())
    told = json.dumps(source, ensure_ascii=False)
    return f"{text.replace(': ../', ': ')}measured:\n{''.join(lines)}  source: {told}\n"


if __name__ == "__main__":
    main()
