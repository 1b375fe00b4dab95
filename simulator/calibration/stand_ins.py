"""Own kernels as a measure of another stack's: what they gain from part to part, those gain.

Curves of the delta rule's chain and of cut losses are of public kernels, which were timed on one part. This project's
kernels of the same kinds are timed on both; a point of theirs becomes one of the public kernel by what the public one
takes on the first part beside them. Right as far as both are bound by the same thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.calibration.point import Point
from simulator.calibration.pricing import priced_s
from simulator.hardware.accelerator import Accelerator

OWN = "own "
"""How names of own kernels' points begin."""
_TIMES = ("seconds", "low_s", "high_s")


def as_public(
    points: Sequence[Point], twins: Sequence[Point], other: Accelerator, clocks: tuple[float, float]
) -> tuple[Point, ...]:
    """*points* of own kernels, with their seconds turned into those of the kernels that *other*'s curves price.

    *twins* were measured on *other*. *clocks* are what timing adds here and there. A point without a twin is left out.
    """
    here_s, there_s = clocks
    known = {_key(twin): twin for twin in twins}
    found = []
    for point in points:
        if _key(point) in known:
            theirs_s = priced_s(point, other) / (known[_key(point)].seconds - there_s)
            times = {name: (getattr(point, name) - here_s) * theirs_s + here_s for name in _TIMES}
            found.append(replace(point, **times))
    return tuple(found)


def _key(point: Point) -> tuple[str, str, tuple[int, ...]]:
    return point.kind, point.name, point.shape
