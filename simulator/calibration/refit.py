"""Curves fitted to points: the physical form of the nearest measured part, with its figures found anew.

The form of each kind is the one that :mod:`simulator.hardware.kernel_time` prices with: bytes over a share of the
memory rate, with a knee where its points say so, plus a start; a roofline with tiles, waves, filling and draining where
there is arithmetic. What is fitted is the price itself, so nothing is lost between a fit and a forecast.
Residuals are logarithms, so that small and large calls count alike, and far ones count less (soft l1). A figure that
no point tells of is carried over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.point import Point
from simulator.calibration.pricing import CHAINS, priced_s
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.curve import Curve
from simulator.hardware.figure import Floats

NOISE = 0.03
"""Relative scatter of medians from run to run."""
CLOCK_NOISE_S = 0.5e-6
"""How well it is known what the clock adds to a call."""
PULL = 0.5
"""Standard deviation, on log scale, with which a figure keeps to the template. It decides what points leave open."""
WIDEST = np.log(20.0)
LARGEST_SHARE = 1.5
LONG_S = 30e-6
"""Shorter calls hold too much of the clock to tell how far points spread."""
POWER_LIMITED_S = 0.65e-3
"""Longer matmuls, repeated for over 10 ms, drive a part into its power limit. A step does not."""
FEWEST_POINTS = 2
LEAST_MOVE = 1e-3
"""By which a price follows a figure that is a fifth lower, relative, where a point tells of the figure."""
STEP = 1e-3
"""On log scale, for slopes."""

Place = tuple[str | int, ...]
"""Where a figure lies in a curve."""
Figures = tuple[Place, ...]
"""Places that hold one and the same figure."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A fitted figure with its interval of 95 %."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A curve and how well it tells its points."""

    curve: Curve
    estimates: tuple[Estimate, ...]
    carried: tuple[str, ...]
    """Figures of the template that no point tells of."""
    used: int
    median_error: float
    worst_error: float
    """Over the points used that are longer than 30 us, or over all where none is."""


def refit(kind: str, points: Sequence[Point], accelerator: Accelerator, clock_s: float, source: str) -> Fit | None:
    """The curve of *kind* on *accelerator*, whose first curve of that kind gives the form; None for too few points.

    *clock_s* is what timing adds to a call. Needs scipy.
    """
    used = tuple(p for p in points if p.kind == kind and _tells(p))
    if len(used) < FEWEST_POINTS or kind in CHAINS or kind not in accelerator.curves:
        return None
    template = accelerator.curves[kind][0]
    forms = [template, *_with_knee(template, used)]
    tried = [solved for form in forms if (solved := _Problem(form, used, accelerator, clock_s).solved()) is not None]
    if not tried:
        return None
    best = min(tried, key=lambda solved: solved.score)
    problem, free, carried, values, sigmas = best.problem, best.free, best.carried, best.values, best.sigmas
    curve = problem.curve(free, values)
    errors = np.abs(np.exp(problem.misses(curve)) - 1)
    long = errors[[p.seconds > LONG_S for p in used]]
    told = long if long.size else errors
    estimates = tuple(
        Estimate(_name(places), float(v), float(v * np.exp(-1.96 * s)), float(v * np.exp(1.96 * s)))
        for places, v, s in zip(free, values, sigmas, strict=True)
    )
    finished = _signed(curve, template, accelerator.id, carried, source, told)
    names = tuple(_name(places) for places in carried)
    return Fit(finished, estimates, names, len(used), float(np.median(told)), float(told.max()))


def _tells(point: Point) -> bool:
    return not (point.kind.endswith("gemm") and point.seconds > POWER_LIMITED_S)


def _with_knee(template: Curve, points: Sequence[Point]) -> list[Curve]:
    """The form with two shares of the memory rate, for small and large calls, where it has one and no arithmetic."""
    if template.compute or any(len(series.points) > 1 for series in template.memory):
        return []
    small, large = np.quantile([p.bytes for p in points], (0.3, 0.9))
    if large < 4 * small:
        return []
    kneed = [
        s.model_copy(update={"points": ((small, s.points[0][1]), (large, s.points[0][1]))}) for s in template.memory
    ]
    return [template.model_copy(update={"memory": tuple(kneed)})]


@dataclass(frozen=True, slots=True)
class _Solved:
    problem: _Problem
    free: list[Figures]
    carried: list[Figures]
    values: Floats
    sigmas: Floats
    score: float
    """Bayesian information criterion: a form with more figures has to earn them."""


class _Problem:
    """Points of one kind beside a template."""

    def __init__(self, template: Curve, points: tuple[Point, ...], accelerator: Accelerator, clock_s: float) -> None:
        self._template = template.model_dump()
        self._points = points
        self._accelerator = accelerator
        self._clock_s = clock_s
        self._seconds = np.array([p.seconds for p in points])
        self._noise = np.hypot(NOISE, CLOCK_NOISE_S / self._seconds)
        self._moved: dict[Figures, NDArray[np.bool_]] = {}
        """Which points each figure moves."""

    def split(self) -> tuple[list[Figures], list[Figures]]:
        """The figures that some price depends on, and the others."""
        before = self._prices(Curve.model_validate(self._template))
        free: list[Figures] = []
        carried: list[Figures] = []
        for figures in _figures(self._template):
            after = self._prices(self.curve([figures], np.array([_at(self._template, figures[0]) * 0.8])))
            moved = np.abs(after / before - 1) > LEAST_MOVE
            self._moved[figures] = moved
            (free if moved.any() else carried).append(figures)
        return free, carried

    def solved(self) -> _Solved | None:
        """What points tell of the figures, with standard deviations on log scale; None where they tell of none."""
        from scipy.optimize import least_squares

        free, carried = self.split()
        if not free:
            return None
        start = np.array([_at(self._template, figures[0]) for figures in free])
        shares = [_is_share(figures[0]) for figures in free]
        upper = [np.log(LARGEST_SHARE / v) if share else WIDEST for v, share in zip(start, shares, strict=True)]

        def residuals(moved: Floats) -> Floats:
            return np.concatenate((self.misses(self.curve(free, start * np.exp(moved))) / self._noise, moved / PULL))

        def jacobian(moved: Floats) -> Floats:
            columns = self._slopes(free, start * np.exp(moved)) / self._noise[:, None]
            return np.concatenate((columns, np.eye(len(free)) / PULL))

        bounds = (np.full(len(free), -WIDEST), np.maximum(upper, 1e-6))
        begin = np.zeros(len(free))
        found = least_squares(residuals, begin, jacobian, bounds, loss="soft_l1", ftol=1e-4, xtol=1e-3, max_nfev=25)
        columns = self._slopes(free, start * np.exp(found.x)) / self._noise[:, None]
        misses = residuals(found.x)[: len(self._points)]
        scatter = max(1.0, float(np.median(np.abs(misses)) / 0.6745) ** 2)
        covariance = np.linalg.inv(columns.T @ columns / scatter + np.eye(len(free)) / PULL**2)
        score = 2.0 * found.cost + len(free) * float(np.log(len(self._points)))
        return _Solved(self, free, carried, start * np.exp(found.x), np.sqrt(np.diag(covariance)), score)

    def _slopes(self, free: list[Figures], values: Floats) -> Floats:
        """How the logarithm of each price follows that of each figure; only points that a figure moves are priced."""
        before = np.log(self._prices(self.curve(free, values)) + self._clock_s)
        columns = np.zeros((len(self._points), len(free)))
        for j, figures in enumerate(free):
            which = self._moved[figures]
            stepped = self.curve(free, values * np.exp(STEP * (np.arange(len(free)) == j)))
            after = np.log(self._prices(stepped, which) + self._clock_s)
            columns[which, j] = (after - before[which]) / STEP
        return columns

    def curve(self, free: list[Figures], values: Floats) -> Curve:
        """The template with *values* in place of the *free* figures."""
        tree = _thawed(self._template)
        for figures, value in zip(free, values, strict=True):
            for place in figures:
                _at(tree, place[:-1])[place[-1]] = min(float(value), LARGEST_SHARE if _is_share(place) else np.inf)
        return Curve.model_validate(tree)

    def misses(self, curve: Curve) -> Floats:
        """Logarithm of priced over measured, point by point."""
        return np.asarray(np.log((self._prices(curve) + self._clock_s) / self._seconds))

    def _prices(self, curve: Curve, which: NDArray[np.bool_] | None = None) -> Floats:
        """Of all points, or of those that *which* marks."""
        part = replace(self._accelerator, curves={**self._accelerator.curves, curve.kind: (curve,)})
        asked = self._points if which is None else [p for p, one in zip(self._points, which, strict=True) if one]
        return np.array([priced_s(point, part) for point in asked])


def _figures(curve: Mapping[str, Any]) -> list[Figures]:
    """What a fit may move. Depths, rows and costs of tiles that are equal in several series are one figure."""
    found: list[Figures] = [(("overhead",),)] if curve["overhead"] else []
    choice = curve["choice"]
    found += [(("choice", "points", j, 1),) for j in range(len(choice["points"]))] if choice else []
    alike: dict[tuple[str, float], list[Place]] = {}
    for side in ("compute", "memory"):
        for i, series in enumerate(curve[side]):
            found += [((side, i, "points", j, 1),) for j in range(len(series["points"]))]
            for name in ("half_depth", "half_rows"):
                if series.get(name):
                    alike.setdefault((name, series[name]), []).append((side, i, name))
            if series.get("tiling") and series["tiling"]["thin"]:
                alike.setdefault(("thin", series["tiling"]["thin"]), []).append((side, i, "tiling", "thin"))
    return found + [tuple(places) for places in alike.values()]


def _is_share(place: Place) -> bool:
    return place[-1] == 1 and place[0] != "choice"


def _at(tree: Any, place: Place) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def _thawed(tree: Any) -> Any:
    """A copy whose sequences can be changed."""
    if isinstance(tree, Mapping):
        return {key: _thawed(value) for key, value in tree.items()}
    return [_thawed(value) for value in tree] if isinstance(tree, tuple | list) else tree


def _name(figures: Figures) -> str:
    return " and ".join(".".join(map(str, place)) for place in figures)


def _signed(curve: Curve, template: Curve, part: str, carried: Sequence[Figures], source: str, errors: Floats) -> Curve:
    """*curve* as one of *part*: who measured it, how far points spread, and what is another part's."""
    tree = _thawed(curve.model_dump())
    own = template.part == part
    untold = _untold_series(tree, {place for figures in carried for place in figures})
    for series in tree["compute"]:
        series["at_limit"] = series["at_limit"] and any(series is one for one in untold)
    if not own:
        for series in untold:
            series["grade"] = "assumed" if (series["grade"] or template.grade) == "assumed" else "scaled"
        if tree["sustained"] is not None:
            tree["sustained"] |= {"grade": "scaled", "source": f"as {template.part}: {tree['sustained']['source']}"}
    spread = round(min(0.9, max(0.01, float(np.quantile(errors, 2 / 3)))), 3)
    notes = f"The form is that of {template.part}."
    if carried:
        notes += f" Not told by any point and carried over: {', '.join(_name(figures) for figures in carried)}."
    return Curve.model_validate(
        tree | {"part": part, "source": source, "grade": "measured", "spread": spread, "notes": notes}
    )


def _untold_series(curve: Mapping[str, Any], untold: set[Place]) -> list[dict[str, Any]]:
    """The series of which no share was told."""
    return [
        series
        for side in ("compute", "memory")
        for i, series in enumerate(curve[side])
        if all((side, i, "points", j, 1) in untold for j in range(len(series["points"])))
    ]
