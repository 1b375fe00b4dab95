"""Forecasts what waits for its run, so that the forecast is on record before the measurement.

python tools/forecast_waiting.py

Writes time and memory of every scenario in a folder `unmeasured` below tests/validation into the `forecast_before.json`
beside that folder, in the place of former forecasts of the same scenario; those of measured scenarios stay as they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simulator.forecast.comparison import summary_of
from simulator.forecast.reading import open_any_scenario
from simulator.forecast.validation import METRICS

CASES = Path(__file__).parents[1] / "tests" / "validation"
MEMORY = ("peak_allocated_bytes", "peak_reserved_bytes", "first_step_peak_allocated_bytes")


def main() -> None:
    """Forecast all of them, one after the other."""
    for folder in sorted(CASES.glob("*/unmeasured")):
        path = folder.parent / "forecast_before.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        for scenario in sorted(folder.glob("*.yaml")):
            document, place = open_any_scenario(str(scenario))
            known[scenario.stem] = figures(summary_of(document.content, place))
            print(scenario.stem, f"{known[scenario.stem]['step_time_s']['p50']:.4f} s")
        path.write_text(json.dumps(known, indent=1) + "\n")


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    """What a run will be held against."""
    return {"step_time_s": summary["step_time_s"]} | {figure: METRICS[figure](summary) for figure in MEMORY}


if __name__ == "__main__":
    main()
