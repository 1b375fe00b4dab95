"""The time of a kernel: a roofline whose two roofs are the shares of peak that were measured, plus a fixed start.

    seconds = max(flops / (peak * compute share), bytes / (bandwidth * memory share)) + overhead

The roofline with attained ceilings is Williams, Waterman and Patterson, CACM 52(4), 2009.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from simulator.hardware.accelerator import Accelerator
from simulator.hardware.curve import Curve, Floats, Series, pick
from simulator.hardware.figure import Grade

SPREAD_OF_SCALING = 0.2
"""Attained GEMM shares of parts that were all measured (A100 87 %, H100 80 %, B200 78 %, GB200 73 %, MI355X 62 % of
dense bf16, stas00/ml-engineering) lie about a fifth apart: what carrying a share over may miss."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """How long a kernel runs and how well that is known."""

    seconds: Floats
    """Device time; one entry per entry of the flops and bytes given, a 0-dimensional array for plain numbers."""
    grade: Grade
    spread: float
    """Relative half-width of about two thirds confidence."""


def kernel_time(
    accelerator: Accelerator,
    kind: str,
    flops: ArrayLike,
    bytes: ArrayLike,  # noqa: A002 - the operators' own word
    shape: tuple[int, ...] = (),
    dtype: str = "bf16",
    *,
    rows: ArrayLike | None = None,
    backward: bool = False,
) -> KernelTime:
    """Price one launch of a kernel of *kind*, or many at once where *flops* and *bytes* are arrays.

    *shape* is (m, n, k) of a gemm, (n, k) of a grouped gemm, (heads, head_dim, length) of attention. *rows*, for a
    grouped gemm, are the rows of each expert along the last axis: padding and small experts cost what they cost.
    No work takes no time. Raise :exc:`UnsupportedDtypeError` for arithmetic in a format that the part lacks, and
    :exc:`KeyError` for a kind that no curve is known for.
    """
    curve = _curve(accelerator, kind)
    flops_, bytes_ = np.broadcast_arrays(np.asarray(flops, float), np.asarray(bytes, float))
    head_dim = shape[1] if kind == "attention" and len(shape) == 3 else None
    exact = True
    compute = memory = np.zeros_like(flops_)
    if curve.compute and flops_.any():
        series = pick(curve.compute, dtype=dtype, backward=backward, head_dim=head_dim)
        exact = series.dtype in {None, dtype} and series.backward == backward
        share = series.share(_size(series, flops_, bytes_, shape, rows))
        compute = flops_ * _padding(curve, rows) / (accelerator.peak_flops_per_s(dtype) * share)
    if curve.memory:
        series = pick(curve.memory, dtype=dtype, backward=backward, head_dim=head_dim)
        share = series.share(_size(series, flops_, bytes_, shape, rows))
        memory = bytes_ / (accelerator.hbm_bandwidth_bytes_per_s * share)
    work = (flops_ > 0) | (bytes_ > 0)
    seconds = np.where(work, np.maximum(compute, memory) + curve.overhead, 0.0)
    carried = curve.part != accelerator.id or not exact
    grade: Grade = "scaled" if carried and curve.grade == "measured" else curve.grade
    spread = float(np.hypot(curve.spread, SPREAD_OF_SCALING)) if carried else curve.spread
    return KernelTime(seconds, grade, spread)


def _curve(accelerator: Accelerator, kind: str) -> Curve:
    curve = accelerator.curves.get(kind)
    if curve is None:
        near = difflib.get_close_matches(kind, accelerator.curves, n=1)
        known = ", ".join(sorted(accelerator.curves)) or "none"
        hint = f"; did you mean {near[0]}?" if near else ""
        raise KeyError(f"no curve prices a kernel of kind {kind!r} on {accelerator.id}: there are {known}{hint}")
    return curve


def _size(series: Series, flops: Floats, bytes_: Floats, shape: tuple[int, ...], rows: ArrayLike | None) -> Floats:
    if series.by == "flops":
        return flops
    if series.by == "bytes":
        return bytes_
    if series.by == "length":
        return np.asarray(shape[-1] if shape else np.inf, float)
    return _mean_rows(rows)


def _mean_rows(rows: ArrayLike | None) -> Floats:
    """Rows of the experts that have any, averaged; without *rows* the experts count as well filled."""
    if rows is None:
        return np.asarray(np.inf)
    rows_ = np.asarray(rows, float)
    return np.asarray(rows_.sum(axis=-1) / np.maximum((rows_ > 0).sum(axis=-1), 1))


def _padding(curve: Curve, rows: ArrayLike | None) -> Floats:
    """Rows computed over rows asked for: each expert's are rounded up to whole tiles."""
    if rows is None:
        return np.asarray(1.0)
    rows_ = np.asarray(rows, float)
    padded = np.ceil(rows_ / curve.tile_rows).sum(axis=-1) * curve.tile_rows
    asked = rows_.sum(axis=-1)
    return np.where(asked > 0, padded / np.maximum(asked, 1), 1.0)
