"""The interval around a step time: what is not measured may be wrong, and by how much.

Each part of the critical time is off by a relative error of its own, common to all that is priced alike and independent
between parts: sigma^2 = sum (time of the part x relative error of its grade)^2. The step time is taken as normal
around the simulated one, so p10 and p90 lie 1.2816 sigma away.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

RELATIVE_ERROR = {"measured": 0.05, "scaled": 0.12, "datasheet": 0.15, "assumed": 0.25}
"""About two thirds of what is priced so lies within it. Set by judgement; the accuracy report checks it."""
TENTH = 1.2816
"""Standard deviations from the median of a normal distribution to its 10th and 90th percentile."""


def interval(step_s: float, time_by_part: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """p10, p50 and p90 of the step time; *time_by_part* holds seconds by (part, grade)."""
    sigma = sqrt(sum((seconds * RELATIVE_ERROR[grade]) ** 2 for (_, grade), seconds in time_by_part.items()))
    return {"p10": max(0.0, step_s - TENTH * sigma), "p50": step_s, "p90": step_s + TENTH * sigma}


def widest(time_by_part: Mapping[tuple[str, str], float], count: int = 3) -> list[str]:
    """The parts that widen the interval most, as "part (grade)"."""
    order = sorted(time_by_part.items(), key=lambda item: -item[1] * RELATIVE_ERROR[item[0][1]])
    return [f"{part} ({grade})" for (part, grade), seconds in order[:count] if seconds > 0]
