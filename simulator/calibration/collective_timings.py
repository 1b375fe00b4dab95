"""Timed collectives as the file that nodes are priced from, and the physical form beside them.

A collective takes a latency, a further wait once its messages are large (the library changes its protocol), and its
bytes over a rate. The file holds the timings themselves; the form is for people, with an interval for each figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from simulator.calibration.point import Point
from simulator.calibration.refit import NOISE, Estimate
from simulator.hardware.collective import Operation, Run, Timings, passes
from simulator.hardware.figure import Floats

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
LEAST_S = 1e-7
"""What is left of a timing at least when the clock is taken off."""


@dataclass(frozen=True, slots=True)
class Form:
    """latency + wait x bytes / (bytes + half) + bytes / rate, fitted to one collective."""

    operation: Operation
    estimates: tuple[Estimate, ...]
    """latency_s, wait_s, half_bytes, bytes_per_s."""
    median_error: float
    worst_error: float

    def seconds(self, sizes: Floats) -> Floats:
        """Of buffers of these sizes."""
        return _form(np.log([one.value for one in self.estimates]), np.asarray(sizes, float))


def groups(points: Sequence[Point]) -> tuple[int, ...]:
    """Numbers of ranks that *points* were taken with, ascending."""
    return tuple(sorted({p.shape[1] for p in points if p.name in OPERATIONS}))


def even(points: Sequence[Point], operation: Operation, ranks: int, clock_s: float) -> tuple[tuple[float, float], ...]:
    """(bytes of the whole buffer, seconds less the clock) of *operation* with even shares, formats averaged."""
    some = [p for p in points if p.name == operation and p.shape[1] == ranks]
    sizes = sorted({p.shape[0] for p in some})
    times = [np.mean([p.seconds for p in some if p.shape[0] == size]) for size in sizes]
    return tuple((float(s), max(LEAST_S, float(t) - clock_s)) for s, t in zip(sizes, times, strict=True))


def timings(
    points: Sequence[Point], part: str, bandwidth_bytes_per_s: float, clock_s: float, known: Timings | None, source: str
) -> Timings:
    """The timings of *part* among the ranks that *points* were taken with; *known* ones of other groups stay."""
    found, measured = {}, groups(points)
    for operation in OPERATIONS:
        runs = []
        for ranks in measured:
            timed = even(points, operation, ranks, clock_s)
            algorithm = _algorithm(operation, ranks, timed, bandwidth_bytes_per_s)
            told = {"ranks": ranks, "algorithm": algorithm, "source": source, "points": timed}
            runs.append(Run.model_validate(told))
        others = known.collectives.get(operation, ()) if known else ()
        runs += [one for one in others if one.ranks not in measured]
        found[operation] = tuple(sorted(runs, key=lambda one: one.ranks))
    return Timings(part=part, bandwidth=bandwidth_bytes_per_s, collectives=found)


def prolonged(known: Timings, own: Timings, source: str) -> Timings:
    """*known* with what *own* says of sizes beyond its last, where the library did the same; such runs add *source*."""
    return known.model_copy(
        update={
            "collectives": {
                operation: tuple(_prolonged(run, own.collectives[operation], source) for run in runs)
                for operation, runs in known.collectives.items()
            }
        }
    )


def _prolonged(run: Run, own: Sequence[Run], source: str) -> Run:
    like = (one for one in own if (one.ranks, one.algorithm) == (run.ranks, run.algorithm))
    beyond = tuple(point for one in like for point in one.points if point[0] > run.points[-1][0])
    update = {"points": (*run.points, *beyond), "source": f"{run.source}; {source}"}
    return run.model_copy(update=update) if beyond else run


def _algorithm(operation: Operation, ranks: int, timed: Sequence[tuple[float, float]], link_bytes_per_s: float) -> str:
    """What the library must have done: more bytes than a link carries in that time were added up by the switch."""
    if operation == "all_to_all":
        return "pairwise"
    size, seconds = timed[-1]
    wire_bytes_per_s = passes(operation) * (ranks - 1) / ranks * size / seconds
    return "nvls" if operation == "all_reduce" and wire_bytes_per_s > link_bytes_per_s else "ring"


def fit_form(operation: Operation, timed: Sequence[tuple[float, float]]) -> Form:
    """The physical form of the timings. Needs scipy."""
    from scipy.optimize import least_squares

    sizes, seconds = np.array(timed).T
    start = np.log([seconds[0], seconds[0], 2.0**20, sizes[-1] / seconds[-1]])

    def residuals(logs: Floats) -> Floats:
        return np.asarray(np.log(_form(logs, sizes) / seconds) / NOISE)

    found = least_squares(residuals, start, loss="soft_l1")
    errors = np.abs(np.exp(residuals(found.x) * NOISE) - 1)
    scatter = max(1.0, 2.0 * found.cost / max(1, len(timed) - len(start)))
    sigma = np.sqrt(np.diag(np.linalg.pinv(found.jac.T @ found.jac)) * scatter)
    names = ("latency_s", "wait_s", "half_bytes", "bytes_per_s")
    estimates = tuple(
        Estimate(name, float(np.exp(x)), float(np.exp(x - 1.96 * s)), float(np.exp(x + 1.96 * s)))
        for name, x, s in zip(names, found.x, sigma, strict=True)
    )
    return Form(operation, estimates, float(np.median(errors)), float(errors.max()))


def _form(logs: Floats, sizes: Floats) -> Floats:
    latency_s, wait_s, half_bytes, bytes_per_s = np.exp(logs)
    return np.asarray(latency_s + wait_s * sizes / (sizes + half_bytes) + sizes / bytes_per_s)


def skewed_errors(
    points: Sequence[Point], timed: Sequence[tuple[float, float]], ranks: int, clock_s: float, opposite: float
) -> list[tuple[int, float]]:
    """(bytes, priced over measured less one) of the skewed all-to-all among *ranks*, which ends with its busiest port.

    It is priced as an even one whose ports carry as much as the busiest: what that receives, and *opposite* of what it
    sends, in the time of as much both ways.
    """
    sizes, seconds = np.array(timed).T
    found = []
    for point in points:
        if point.name == "all_to_all, skewed" and point.shape[1] == ranks:
            size, _, received = point.shape
            # The rank that receives most keeps as much as each other sends it.
            sent = size - received / (ranks - 1)
            like_even = (received + opposite * sent) / (1 + opposite) * ranks / (ranks - 1)
            beyond = max(like_even - sizes[-1], 0.0) * (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
            priced = float(np.interp(like_even, sizes, seconds) + beyond)
            found.append((size, priced / (point.seconds - clock_s) - 1))
    return found
