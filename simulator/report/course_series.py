"""A serving loop as series over equal spans of time: sequences, room for caches, tokens a second.

Of the whole deployment, and of the fullest accelerator where it is about room; means over spans, the highest where it
is about room.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from simulator.forecast.serving.engine import Row
    from simulator.forecast.serving.loop import Course

    Series = npt.NDArray[np.float64]

_SPANS = 300


@dataclass(frozen=True, slots=True)
class CourseSeries:
    """One value for each span between two *edges_s*."""

    edges_s: Series
    running: Series
    waiting: Series
    used_bytes: Series
    prompt_tokens_per_s: Series
    output_tokens_per_s: Series


def course_series(course: Course) -> CourseSeries:
    """The series of *course*."""
    every = [row for rows in course.rows.values() for row in rows]
    decode = course.rows["decode"]
    edges = np.linspace(0, course.end_ns / 1e9, _SPANS + 1)
    return CourseSeries(
        edges,
        _mean(decode, [row.running for row in decode], edges) * course.scale,
        _mean(decode, [row.waiting for row in decode], edges) * course.scale,
        _highest(decode, [row.used_bytes for row in decode], edges),
        _rate(every, [row.prompt_tokens for row in every], edges) * course.scale,
        _rate(decode, [row.decoding * row.iterations for row in decode], edges) * course.scale,
    )


def _highest(rows: Many[Row], values: Many[float], edges: Series) -> Series:
    highest = np.zeros(len(edges) - 1)
    for row, value in zip(rows, values, strict=True):
        first, last = np.searchsorted(edges, (row.begin_ns / 1e9, row.end_ns / 1e9), side="right") - 1
        highest[first : last + 1] = np.maximum(highest[first : last + 1], value)
    return highest


def _mean(rows: Many[Row], values: Many[float], edges: Series) -> Series:
    """Of *values* that hold during their rows, over each span, summed over engines; nothing between rows."""
    seconds = [(row.end_ns - row.begin_ns) / 1e9 for row in rows]
    return _rate(rows, [value * s for value, s in zip(values, seconds, strict=True)], edges)


def _rate(rows: Many[Row], amounts: Many[float], edges: Series) -> Series:
    """*amounts* that come evenly during their rows, a second, over each span."""
    if not rows:
        return np.zeros(len(edges) - 1)
    began = np.array([row.begin_ns for row in rows]) / 1e9
    ended = np.array([row.end_ns for row in rows]) / 1e9
    rates = np.array(amounts, float) / (ended - began)
    # A sum of ramps, each of which rises while its row lasts.
    points = np.concatenate((began, ended))
    order = np.argsort(points, kind="stable")
    slopes = np.cumsum(np.concatenate((rates, -rates))[order])
    at = points[order]
    done = np.concatenate(([0.0], np.cumsum(slopes[:-1] * np.diff(at))))
    return np.asarray(np.diff(np.interp(edges, at, done)) / np.diff(edges))
