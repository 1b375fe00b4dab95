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
from simulator.hardware.curve import Curve, Floats, Series, choose, pick
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
    source: str


@dataclass(frozen=True, slots=True)
class _Ask:
    """What is to be priced, in arrays."""

    accelerator: Accelerator
    kind: str
    flops: Floats
    bytes: Floats
    shape: tuple[int, ...]
    dtype: str
    rows: Floats | None
    backward: bool


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
    flops_, bytes_ = np.broadcast_arrays(np.asarray(flops, float), np.asarray(bytes, float))
    rows_ = None if rows is None else np.asarray(rows, float)
    ask = _Ask(accelerator, kind, flops_, bytes_, shape, dtype, rows_, backward)
    curve = choose(_curves(accelerator, kind), dtype, backward=backward)
    memory = binding = _pick(ask, curve.memory)
    slower_s = memory_s = bytes_ / (accelerator.hbm_bandwidth_bytes_per_s * _share(ask, memory))
    if curve.compute and flops_.any():
        compute = _pick(ask, curve.compute)
        compute_s = flops_ * _rounding(ask, curve) / (accelerator.peak_flops_per_s(dtype) * _share(ask, compute))
        slower_s = np.maximum(compute_s, memory_s)
        binding = compute if compute_s.sum() > memory_s.sum() else memory
    seconds = np.where((flops_ > 0) | (bytes_ > 0), slower_s + curve.overhead, 0.0)
    return KernelTime(seconds, *_trust(ask, curve, binding), curve.source)


def _curves(accelerator: Accelerator, kind: str) -> tuple[Curve, ...]:
    curves = accelerator.curves.get(kind)
    if not curves:
        near = difflib.get_close_matches(kind, accelerator.curves, n=1)
        known = ", ".join(sorted(accelerator.curves)) or "none"
        hint = f"; did you mean {near[0]}?" if near else ""
        raise KeyError(f"no curve prices a kernel of kind {kind!r} on {accelerator.id}: there are {known}{hint}")
    return curves


def _pick(ask: _Ask, series: tuple[Series, ...]) -> Series:
    head_dim = ask.shape[1] if ask.kind == "attention" and len(ask.shape) == 3 else None
    return pick(series, ask.dtype, backward=ask.backward, head_dim=head_dim)


def _share(ask: _Ask, series: Series) -> Floats:
    length = np.asarray(ask.shape[-1] if ask.shape else np.inf, float)
    share = series.share({"flops": ask.flops, "bytes": ask.bytes, "length": length}[series.by])
    if series.half_depth and ask.shape:
        depth = max(ask.shape[-1], series.depth_from)
        return share * depth / (depth + series.half_depth)
    return share


def _rounding(ask: _Ask, curve: Curve) -> Floats:
    """Arithmetic done over asked for: rows rounded up to tiles, and tiles to waves over the compute units."""
    if curve.tile is None or ask.rows is None:
        return np.asarray(1.0)
    high = np.ceil(ask.rows / curve.tile.rows).sum(axis=-1)
    wide = -(-ask.shape[0] // curve.tile.columns)
    units = ask.accelerator.sheet.sm_count
    wave = units.value if units else 1.0
    done = np.ceil(high * wide / wave) * wave / wide * curve.tile.rows
    asked = ask.rows.sum(axis=-1)
    return np.where(asked > 0, done / np.maximum(asked, 1), 1.0)


def _trust(ask: _Ask, curve: Curve, binding: Series) -> tuple[Grade, float]:
    """The grade and spread of a price: what was measured elsewhere, or in another format or direction, is scaled."""
    grade = binding.grade or curve.grade
    if curve.part == ask.accelerator.id and all(binding.suits(ask.dtype, backward=ask.backward)):
        return grade, curve.spread
    carried: Grade = "scaled" if grade == "measured" else grade
    return carried, float(np.hypot(curve.spread, SPREAD_OF_SCALING))
