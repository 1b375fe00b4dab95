"""Measured curves: which share of its peaks an accelerator attains, by kind of kernel and size.

A curve holds points (size, share) and interpolates the share linearly over the logarithm of the size; beyond the first
and last point it stays flat. Sizes are what the kernel's time is known to follow: its FLOPs, its bytes, the rows of an
expert or the length of a sequence. A kernel measured under one roof only (memory) leaves the other out.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from simulator.hardware.figure import Grade, Record, Share
from simulator.units import Seconds

Floats = NDArray[np.float64]
Size = Annotated[float, Field(gt=0)]
Axis = Literal["flops", "bytes", "rows", "length"]


class Series(Record):
    """Points of one share over one size, for one number format and direction."""

    by: Axis
    points: Annotated[tuple[tuple[Size, Share], ...], Field(min_length=1)]
    dtype: str | None = None
    """Format it was measured in; None: any."""
    backward: bool = False
    head_dim: int | None = None
    """Attention only: the width of the query heads it was measured with."""

    @field_validator("points")
    @classmethod
    def _ascending(cls, points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        for (left, _), (right, _) in pairwise(points):
            if left >= right:
                raise ValueError(f"sizes must rise from point to point, found {left:g} before {right:g}")
        return points

    def share(self, size: Floats) -> Floats:
        """The share at *size*, interpolated on log size; sizes of zero take the first point."""
        sizes, shares = np.array(self.points).T
        return np.asarray(np.interp(np.log(np.maximum(size, sizes[0])), np.log(sizes), shares))


class Curve(Record):
    """How one kind of kernel runs on one part."""

    kind: str
    part: str
    """The accelerator it was measured on, by id."""
    source: Annotated[str, Field(min_length=1)]
    grade: Grade
    spread: Annotated[float, Field(ge=0, lt=1)]
    """Relative half-width that holds about two thirds of the measured points around the curve."""
    overhead: Seconds
    """Device time of starting and draining the kernel, added to the roofline."""
    compute: tuple[Series, ...] = ()
    """Share of the arithmetic peak. Empty: arithmetic of this kind hides under its traffic and is not priced."""
    memory: tuple[Series, ...] = ()
    """Share of the memory rate, over the bytes that the operator counts."""
    tile_rows: Annotated[int, Field(ge=1)] = 1
    """Rows of an expert are computed in tiles of so many: padding costs like work (grouped_gemm)."""
    notes: str = ""


def pick(series: tuple[Series, ...], *, dtype: str, backward: bool, head_dim: int | None) -> Series:
    """The series measured nearest to what is asked: direction first, then format, then head width."""

    def distance(one: Series) -> tuple[bool, bool, float]:
        width = abs(np.log(one.head_dim / head_dim)) if one.head_dim and head_dim else 0.0
        return one.backward != backward, one.dtype not in {None, dtype}, float(width)

    return min(series, key=distance)
