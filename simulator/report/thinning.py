"""Fewer points of a curve without losing what it shows: the highest point of each of many equal spans of time stays.

So every peak survives at its exact time and value. What is lost is the order of points within one span.
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


def fullest(time_ns: np.ndarray, value: np.ndarray, spans: int) -> np.ndarray:
    """Indices, rising, of the first point, the last and the highest of each span; all where there are no more."""
    if len(time_ns) <= spans + 2:
        return np.arange(len(time_ns))
    order, ends = _by_span(time_ns, value, spans)
    return np.unique(np.concatenate(([0, len(time_ns) - 1], order[ends])))


def envelope(time_ns: np.ndarray, value: np.ndarray, spans: int) -> np.ndarray:
    """As :func:`fullest`, with the lowest point of each span as well."""
    if len(time_ns) <= 2 * spans + 2:
        return np.arange(len(time_ns))
    order, ends = _by_span(time_ns, value, spans)
    starts = np.concatenate(([0], ends[:-1] + 1))
    return np.unique(np.concatenate(([0, len(time_ns) - 1], order[starts], order[ends])))


def _by_span(time_ns: np.ndarray, value: np.ndarray, spans: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices sorted by span and then by value, and where in that order each span ends."""
    edges = np.linspace(time_ns[0], time_ns[-1], spans + 1)[1:-1]
    span = np.searchsorted(edges, time_ns, side="right")
    order = np.lexsort((value, span))
    return order, np.flatnonzero(np.diff(span[order], append=spans))
