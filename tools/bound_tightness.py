"""How near the planner's bounds come to what is simulated, over random candidates of a scenario that may fit.

python tools/bound_tightness.py SCENARIO NUMBER [PATH=VALUE...]

Prints the ratio of bound and simulation, of the step and of device memory: none may be above 1.
"""

from __future__ import annotations

import sys
from time import process_time
from typing import Any

import numpy as np

from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario
from simulator.planner.bounds import Bound
from simulator.planner.plan import prepare

SEED = 6
LABELS = ("least", "p10", "median", "p90", "most")


def main(name: str, number: int, changes: list[str]) -> None:
    """Bound all candidates of scenario *name*, simulate *number* of them, print what was found."""
    scenario, folder = read_scenario(name, changes)
    began = process_time()
    search, case = prepare(scenario, folder)
    spent_s = process_time() - began
    count, fitting = len(search.splits), np.flatnonzero(search.fitting)
    print(f"{count:,} candidates bounded in {spent_s:.1f} s of CPU, {count / spent_s:,.0f} a second")
    print(f"{len(fitting):,} may fit")
    chosen = np.random.default_rng(SEED).permutation(fitting)[:number].tolist()
    found = np.array([_ratios(search.bound, one, forecast(case(one).scenario, folder).summary) for one in chosen])
    for what, ratios in zip(("step", "memory"), found.T, strict=True):
        quantiles = np.quantile(ratios, [0.0, 0.1, 0.5, 0.9, 1.0])
        print(f"{what:6}  " + "  ".join(f"{label} {q:.3f}" for label, q in zip(LABELS, quantiles, strict=True)))
    assert found.max() <= 1, "a bound is above its simulation"


def _ratios(bound: Bound, number: int, summary: dict[str, Any]) -> tuple[float, float]:
    """Bound over simulation, of the step's seconds and of the fullest card's bytes."""
    step_s, peak_bytes = summary["step_time_s"]["p50"], summary["memory"]["hbm"]["peak_bytes"]
    return float(bound.step_s[number] / step_s), float(bound.peak_bytes[number] / peak_bytes)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
