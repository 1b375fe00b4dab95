"""Measured curves: which share of its peaks an accelerator attains, by kind of kernel and size.

A curve holds points (size, share) and interpolates the share linearly over the logarithm of the size; beyond the first
and last point it stays flat. Sizes are what the kernel's time is known to follow: its FLOPs, its bytes, the length of
a sequence, or how many heads attend. What is known of how a kernel spreads over the chip comes on top, as a few
physical parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import numpy as np
from pydantic import Field, field_validator

from simulator.hardware.figure import Figure, Floats, Grade, Record, Share, rising
from simulator.hardware.tiling import Tiling
from simulator.units import Seconds

Size = Annotated[float, Field(gt=0)]

_SAME_RATE = {"fp16": "bf16"}
"""Formats that run at the rate of another and are measured under its name."""
SCALES = "/"
"""Between a format and how finely its values are scaled, where kernels differ by it: "fp8/rowwise"."""


class Series(Record):
    """Points of one share over one size, for one number format and direction."""

    by: Literal["flops", "bytes", "length", "heads"]
    points: Annotated[tuple[tuple[Size, Share], ...], Field(min_length=1)]
    dtype: str | None = None
    """Format it was measured in, with its scales where they matter: "fp8", one scale a tensor; "fp8/rowwise",
    "fp8/blockwise", "fp8/mx". None: any."""
    backward: bool | None = None
    """Direction it was measured in; None: either."""
    weight_gradient: bool | None = None
    """Grouped matmuls only: True, measured on the gradient of the weights, where the rows of each expert are the inner
    dimension; False, on the other products; None, either."""
    even_parts: bool | None = None
    """amax_compiled only: True, measured where the compiler cuts the elements into equal parts; False, into unequal
    (see :mod:`.reduction_parts`); None, either."""
    grade: Grade | None = None
    """Where it differs from the curve's."""
    carried: Grade = "scaled"
    """That of what was measured, on another part: assumed where its peak may not be what binds there."""

    _by_size = field_validator("points")(rising)

    def share(self, size: Floats) -> Floats:
        """The share at *size*, interpolated on log size; sizes of zero take the first point."""
        sizes, shares = np.array(self.points).T
        return np.asarray(np.interp(np.log(np.maximum(size, sizes[0])), np.log(sizes), shares))

    def suits(self, dtype: str, *, backward: bool) -> tuple[bool, bool]:
        """Whether it was measured in the format, and in the direction, that is asked for; scales may differ."""
        asked, own = number_format(dtype), self.dtype and number_format(self.dtype)
        return own in {None, _SAME_RATE.get(asked, asked)}, self.backward in {None, backward}

    def scaled_alike(self, dtype: str) -> bool:
        """Whether values were scaled as finely as asked for."""
        return self.dtype is None or self.dtype.partition(SCALES)[2] == dtype.partition(SCALES)[2]


class ComputeSeries(Series):
    """A share of the arithmetic peak, and what keeps small work from attaining it."""

    head_dim: int | None = None
    """Attention only: the width of the query heads it was measured with."""
    half_depth: Annotated[float, Field(ge=0)] = 0.0
    """Matmuls: the inner dimension k at which filling and draining a tile costs as much as its arithmetic. Attention:
    the length at which the masked half of the blocks on the diagonal, with filling and draining, does. Work grows by
    1 + half_depth / k."""
    depth_from: Annotated[float, Field(ge=0)] = 0.0
    """The shortest k measured: below it the share stays, as beyond the ends of the points."""
    half_rows: Annotated[float, Field(ge=0)] = 0.0
    """Attention only: rows of queries for each compute unit at which the last blocks, that run alone, cost as much as
    all the others. Work grows by 1 + half_rows x units / (batch x heads x length)."""
    head_block: Annotated[int, Field(ge=1)] = 1
    """Sparse attention only: heads are padded to a multiple of so many, and points by heads are of padded ones."""
    tiling: Tiling | None = None
    """Matmuls only: present, work is rounded up to tiles and waves of tiles."""
    ridge: Annotated[float, Field(ge=1)] | None = None
    """How sharply the roofs meet: arithmetic and traffic times combine as the norm of this order, since near the ridge
    each keeps the other waiting. None: the larger alone."""
    at_limit: bool = False
    """Timed for seconds on end, so that the part was at its power limit: nothing more is lost within a step."""


class Serial(Record):
    """A walk along a sequence, one step after the other, however many heads walk beside each other."""

    tokens: Annotated[int, Field(gt=0)]
    """Tokens of one step."""
    step: Seconds
    """What a step takes while there is room for all walks at once."""


class Choice(Record):
    """The best keys of each query chosen as their scores are made: beside the products, and the same for any heads."""

    units: Annotated[float, Field(gt=0)]
    """Compute units of the part that it was measured on; a part with more of them chooses faster in proportion."""
    points: Annotated[tuple[tuple[Size, Seconds], ...], Field(min_length=1)]
    """(length of the sequence, seconds for each pair of a query and a key that it sees)."""

    _by_size = field_validator("points")(rising)

    def pair_s(self, length: float, units: float | None) -> float:
        """Of a sequence of *length*, interpolated on log scales, on a part of so many *units* (None: as many)."""
        lengths, seconds = np.log(self.points).T
        measured_s = float(np.exp(np.interp(np.log(length), lengths, seconds)))
        return measured_s * (self.units / units if units else 1.0)


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
    serial: Serial | None = None
    """Present: no sequence is done sooner than its steps, whatever the traffic."""
    choice: Choice | None = None
    """indexer_choice only: what choosing keys takes, added to the roofline."""
    sustained: Figure[Share] | None = None
    """Share of its own rate that arithmetic, with a choice among its results, keeps within a training step, where the
    part works at its power limit. Without `compute`: that a kernel keeps which waits for its own steps rather than for
    memory, so that the clock bounds it, whatever it is priced by."""
    compute: tuple[ComputeSeries, ...] = ()
    """Share of the arithmetic peak. Empty: arithmetic of this kind hides under its traffic and is not priced."""
    memory: Annotated[tuple[Series, ...], Field(min_length=1)]
    """Share of the memory rate, over the bytes that the operator counts."""
    notes: str = ""

    @property
    def clocked(self) -> float:
        """What `sustained` takes from kernels that are priced by their traffic or steps alone."""
        return 1.0 if self.sustained is None or self.compute else self.sustained.value


S = TypeVar("S", bound=Series)


def number_format(dtype: str) -> str:
    """The format of *dtype* without its scales."""
    return dtype.partition(SCALES)[0]


def choose(curves: Sequence[Curve], dtype: str, *, backward: bool) -> Curve:
    """The first of *curves* (own part first) measured in the format and direction; failing that, in the format."""

    def mismatch(curve: Curve) -> tuple[bool, bool]:
        return min(_mismatch(series, dtype, backward) for series in curve.compute or curve.memory)

    return min(curves, key=mismatch)


def pick(
    series: Sequence[S], dtype: str, *, backward: bool, head_dim: int | None, weight_gradient: bool, even_parts: bool
) -> S:
    """The one measured nearest to what is asked: format, its scales, direction, then gradient, parts or head width."""

    def distance(one: S) -> tuple[bool, bool, bool, bool, bool, float]:
        measured_dim = one.head_dim if isinstance(one, ComputeSeries) else None
        width = abs(float(np.log(measured_dim / head_dim))) if measured_dim and head_dim else 0.0
        other_gradient = one.weight_gradient not in {None, weight_gradient}
        format_, direction = _mismatch(one, dtype, backward)
        other_parts = one.even_parts not in {None, even_parts}
        return format_, not one.scaled_alike(dtype), direction, other_gradient, other_parts, width

    return min(series, key=distance)


def _mismatch(series: Series, dtype: str, backward: bool) -> tuple[bool, bool]:
    same_dtype, same_direction = series.suits(dtype, backward=backward)
    return not same_dtype, not same_direction
