"""Fewer points of a curve without losing what it shows.

In each of a number of equal spans of time the highest and the lowest point stay, so every peak survives at its exact
time and value. What is lost is only the order of points within one span.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simulator.forecast.timeline import MemoryCurve


def total_bytes(curve: MemoryCurve) -> np.ndarray:
    """Bytes of all kinds together, at each point of *curve*."""
    total = np.zeros(len(curve.time_ns))
    for held in curve.bytes_by_kind.values():
        total += held
    return total


def envelope(time_ns: np.ndarray, value: np.ndarray, spans: int) -> np.ndarray:
    """Indices, rising, of the points to keep: all if there are at most 2 x *spans* + 2, else two per span and both
    ends.
    """
    points = len(time_ns)
    if points <= 2 * spans + 2:
        return np.arange(points)
    edges = np.linspace(time_ns[0], time_ns[-1], spans + 1)[1:-1]
    span = np.searchsorted(edges, time_ns, side="right")
    by_value = np.lexsort((value, span))
    first = np.flatnonzero(np.diff(span[by_value], prepend=-1))
    last = np.append(first[1:], points) - 1
    return np.unique(np.concatenate(([0, points - 1], by_value[first], by_value[last])))
