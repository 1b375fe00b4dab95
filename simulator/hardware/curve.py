"""Measured curves: which share of its peaks an accelerator attains, by kind of kernel and size.

A curve holds points (size, share) and interpolates the share linearly over the logarithm of the size; beyond the first
and last point it stays flat. Sizes are what the kernel's time is known to follow: its FLOPs, its bytes or the length of
a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from simulator.hardware.figure import Grade, Record, Share
from simulator.units import Seconds

Floats = NDArray[np.float64]
Size = Annotated[float, Field(gt=0)]

_SAME_RATE = {"fp16": "bf16"}
"""Formats that run at the rate of another and are measured under its name."""


class Series(Record):
    """Points of one share over one size, for one number format and direction."""

    by: Literal["flops", "bytes", "length"]
    points: Annotated[tuple[tuple[Size, Share], ...], Field(min_length=1)]
    dtype: str | None = None
    """Format it was measured in; None: any."""
    backward: bool | None = None
    """Direction it was measured in; None: either."""
    head_dim: int | None = None
    """Attention only: the width of the query heads it was measured with."""
    half_depth: Annotated[float, Field(ge=0)] = 0.0
    """Matmuls only: the inner dimension k at which filling and draining a tile costs as much as its arithmetic, so that
    the share is multiplied by k / (k + half_depth)."""
    depth_from: Annotated[float, Field(ge=0)] = 0.0
    """The shortest k measured: below it the share stays, as beyond the ends of the points."""
    grade: Grade | None = None
    """Where it differs from the curve's."""

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

    def suits(self, dtype: str, *, backward: bool) -> tuple[bool, bool]:
        """Whether it was measured in the format, and in the direction, that is asked for."""
        return self.dtype in {None, _SAME_RATE.get(dtype, dtype)}, self.backward in {None, backward}


class Tile(Record):
    """The block of a grouped matmul's output that one compute unit makes at a time."""

    rows: Annotated[int, Field(ge=1)]
    columns: Annotated[int, Field(ge=1)]


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
    memory: Annotated[tuple[Series, ...], Field(min_length=1)]
    """Share of the memory rate, over the bytes that the operator counts."""
    tile: Tile | None = None
    """Present: each expert's rows are padded to whole tiles, and all tiles to whole waves over the compute units."""
    notes: str = ""


def choose(curves: Sequence[Curve], dtype: str, *, backward: bool) -> Curve:
    """The first of *curves* (own part first) measured in the format and direction; failing that, in the format."""

    def mismatch(curve: Curve) -> tuple[bool, bool]:
        return min(_mismatch(series, dtype, backward) for series in curve.compute or curve.memory)

    return min(curves, key=mismatch)


def pick(series: Sequence[Series], dtype: str, *, backward: bool, head_dim: int | None) -> Series:
    """The one measured nearest to what is asked: format first, then direction, then head width."""

    def distance(one: Series) -> tuple[bool, bool, float]:
        width = abs(float(np.log(one.head_dim / head_dim))) if one.head_dim and head_dim else 0.0
        return (*_mismatch(one, dtype, backward), width)

    return min(series, key=distance)


def _mismatch(series: Series, dtype: str, backward: bool) -> tuple[bool, bool]:
    same_dtype, same_direction = series.suits(dtype, backward=backward)
    return not same_dtype, not same_direction
