"""How near the planner's bounds come to what is simulated, over random candidates of a scenario that may fit.

python tools/bound_tightness.py SCENARIO NUMBER [PATH=VALUE...]

Prints the ratio of bound and simulation, of the step and of device memory, for the rough bounds that all candidates
have and for sharpened ones: none may be above 1.
"""

from __future__ import annotations

import sys
from time import process_time
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.forecast.forecast import summarize
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
    chosen = np.random.default_rng(SEED).permutation(fitting)[:number]
    summaries = [summarize(case(one).scenario, folder) for one in chosen.tolist()]
    rough = _told("rough", search.bound, chosen, summaries)
    while search.bounds.sharpen(chosen):
        pass
    sharp = _told("sharp", search.bound, chosen, summaries)
    assert max(rough, sharp) <= 1, "a bound is above its simulation"


def _told(how: str, bound: Bound, chosen: npt.NDArray[np.int64], summaries: list[dict[str, Any]]) -> float:
    """Print quantiles of the ratios of *chosen* candidates; the highest."""
    found = np.array([_ratios(bound, one, summary) for one, summary in zip(chosen, summaries, strict=True)])
    for what, ratios in zip(("step", "memory"), found.T, strict=True):
        quantiles = np.quantile(ratios, [0.0, 0.1, 0.5, 0.9, 1.0])
        told = "  ".join(f"{label} {q:.3f}" for label, q in zip(LABELS, quantiles, strict=True))
        print(f"{how} {what:6}  {told}")
    return float(found.max())


def _ratios(bound: Bound, number: int, summary: dict[str, Any]) -> tuple[float, float]:
    """Bound over simulation, of the step's seconds and of the fullest card's bytes."""
    step_s, peak_bytes = summary["step_time_s"]["p50"], summary["memory"]["hbm"]["peak_bytes"]
    return float(bound.step_s[number] / step_s), float(bound.peak_bytes[number] / peak_bytes)


if __name__ == "__main__":
    if len(sys.argv) < 3 or not sys.argv[2].isdigit():
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
