"""The time of a kernel: a roofline whose two roofs are the shares of peak that were measured, plus a fixed start.

    seconds = max(flops / (peak * compute share), bytes / (bandwidth * memory share)) + overhead

The roofline with attained ceilings is Williams, Waterman and Patterson, CACM 52(4), 2009. Arithmetic is first rounded
up to what the chip does for it: whole tiles, waves over compute units, filling and draining (see :mod:`.curve`).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from simulator.hardware.accelerator import Accelerator
from simulator.hardware.curve import ComputeSeries, Curve, S, Series, choose, pick
from simulator.hardware.figure import Floats, Grade
from simulator.hardware.reduction_parts import cut_evenly

SPREAD_OF_SCALING = 0.2
"""Attained GEMM shares of parts that were all measured (A100 87 %, H100 80 %, B200 78 %, GB200 73 %, MI355X 62 % of
dense bf16, stas00/ml-engineering) lie about a fifth apart: what carrying a share over may miss."""

_BF16_BYTES = 2
CORES = frozenset({"attention", "flash2", "flash_triton"})
"""Kinds whose shape is (heads, head_dim, length)."""


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
    weight_gradient: bool

    @property
    def known_units(self) -> float | None:
        """Independent compute units, where the sheet tells them."""
        known = self.accelerator.sheet.sm_count
        return known.value if known else None

    @property
    def units(self) -> float:
        """The same; 1 where they are not known, so that nothing is rounded up to waves."""
        return self.known_units or 1.0

    @property
    def even_parts(self) -> bool:
        """Whether a compiler cuts the elements of a largest of all, of the largest call, into equal parts."""
        if self.kind != "amax_compiled" or self.known_units is None:
            return True
        return cut_evenly(round(float(self.bytes.max()) / _BF16_BYTES), round(self.known_units))


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
    weight_gradient: bool = False,
    alone: bool = False,
) -> KernelTime:
    """Price one launch of a kernel of *kind*, or many at once where *flops* and *bytes* are arrays.

    *shape* is (m, n, k) of a gemm as executed, (n, k) of a grouped gemm, (heads, head_dim, length) of attention, of
    its older generations (flash2, flash_triton), of what walks a sequence and of an indexer.
    *rows*, for a grouped gemm, are the rows of each expert along the last axis: padding and small experts cost what
    they cost. *weight_gradient* says that a grouped gemm makes an (n, k) gradient for each expert, out of its rows.
    A kernel timed *alone* runs faster than within a step, where the part is at its power limit. No work takes no time.
    Raise :exc:`UnsupportedDtypeError` for arithmetic in a format that the part lacks, and
    :exc:`KeyError` for a kind that no curve is known for.
    """
    flops_, bytes_ = np.broadcast_arrays(np.asarray(flops, float), np.asarray(bytes, float))
    rows_ = None if rows is None else np.asarray(rows, float)
    ask = _Ask(accelerator, kind, flops_, bytes_, shape, dtype, rows_, backward, weight_gradient)
    curve = choose(_curves(accelerator, kind), dtype, backward=backward)
    memory = binding = _pick(ask, curve.memory)
    rate = accelerator.hbm_bandwidth_bytes_per_s * memory.share(_size(ask, memory))
    slower_s = memory_s = bytes_ / rate
    if curve.compute and flops_.any():
        compute = _pick(ask, curve.compute)
        compute_s = _compute_s(ask, compute, rate) + _choice_s(ask, curve)
        if curve.sustained is not None and not alone and not compute.at_limit:
            compute_s = compute_s / curve.sustained.value
        slower_s = _joined(compute_s, memory_s, compute.ridge)
        binding = compute if compute_s.sum() > memory_s.sum() else memory
    if curve.serial is not None and ask.shape:
        slower_s = np.maximum(slower_s, np.ceil(ask.shape[-1] / curve.serial.tokens) * curve.serial.step)
    if not alone:
        slower_s = slower_s / curve.clocked
    seconds = np.where((flops_ > 0) | (bytes_ > 0), slower_s + curve.overhead, 0.0)
    return KernelTime(seconds, *_trust(ask, curve, binding), curve.source)


def head_dim(kind: str, shape: tuple[int, ...]) -> int | None:
    """Width of a head of a core, whose *shape* names it; None for other kinds."""
    return shape[1] if kind in CORES and len(shape) == 3 else None


def _curves(accelerator: Accelerator, kind: str) -> tuple[Curve, ...]:
    curves = accelerator.curves.get(kind)
    if not curves:
        near = difflib.get_close_matches(kind, accelerator.curves, n=1)
        known = ", ".join(sorted(accelerator.curves)) or "none"
        hint = f"; did you mean {near[0]}?" if near else ""
        raise KeyError(f"no curve prices a kernel of kind {kind!r} on {accelerator.id}: there are {known}{hint}")
    return curves


def _pick(ask: _Ask, series: tuple[S, ...]) -> S:
    return pick(
        series,
        ask.dtype,
        backward=ask.backward,
        head_dim=head_dim(ask.kind, ask.shape),
        weight_gradient=ask.weight_gradient,
        even_parts=ask.even_parts,
    )


def _size(ask: _Ask, series: Series) -> Floats:
    length = np.asarray(ask.shape[-1] if ask.shape else np.inf, float)
    heads = np.asarray(_in_blocks(ask, series) if isinstance(series, ComputeSeries) and ask.shape else 1.0)
    return {"flops": ask.flops, "bytes": ask.bytes, "length": length, "heads": heads}[series.by]


def _joined(compute_s: Floats, memory_s: Floats, ridge: float | None) -> Floats:
    larger = np.maximum(compute_s, memory_s)
    if ridge is None:
        return larger
    smaller_part = np.minimum(compute_s, memory_s) / np.where(larger > 0, larger, 1.0)
    return np.asarray(larger * (1 + smaller_part**ridge) ** (1 / ridge))


def _compute_s(ask: _Ask, series: ComputeSeries, bytes_per_s: Floats) -> Floats:
    """Time of the arithmetic alone."""
    flops_per_s = ask.accelerator.peak_flops_per_s(ask.dtype) * series.share(_size(ask, series))
    plain_s = ask.flops / flops_per_s * _padded_heads(ask, series)
    if ask.rows is not None and len(ask.shape) == 2:
        if ask.weight_gradient:
            return plain_s * _gradient_work(ask, series)
        return plain_s * _tiled_work(ask, series, ask.rows, ask.shape, bytes_per_s / flops_per_s)
    if len(ask.shape) == 3 and series.tiling:
        rows = np.array([ask.shape[0]], float)
        return plain_s * _tiled_work(ask, series, rows, ask.shape[1:], bytes_per_s / flops_per_s)
    return plain_s * (_depth_work(series, ask.shape[-1]) + _lone_blocks(ask, series)) if ask.shape else plain_s


def _choice_s(ask: _Ask, curve: Curve) -> Floats:
    """Time of choosing keys among the scores of every pair: 2 head_dim FLOPs a head for a product, 2 for its sum."""
    if curve.choice is None or len(ask.shape) != 3:
        return np.asarray(0.0)
    heads, head_dim, length = ask.shape
    pairs = ask.flops / (2 * heads * (head_dim + 1))
    return np.asarray(pairs * curve.choice.pair_s(length, ask.known_units))


def _padded_heads(ask: _Ask, series: ComputeSeries) -> float:
    """Heads computed over those asked for, where they come in blocks."""
    return 1.0 if series.head_block == 1 else _in_blocks(ask, series) / ask.shape[0]


def _in_blocks(ask: _Ask, series: ComputeSeries) -> float:
    """Heads in whole blocks."""
    return float(-(-ask.shape[0] // series.head_block) * series.head_block)


def _depth_work(series: ComputeSeries, depth: ArrayLike) -> Floats:
    return np.asarray(1 + series.half_depth / np.maximum(np.maximum(depth, series.depth_from), 1))


def _lone_blocks(ask: _Ask, series: ComputeSeries) -> Floats:
    """Work of the last blocks of attention over all of it. Rows of queries are what their FLOPs say: 2 head_dim length
    each forward, 5 backward, causal.
    """
    if not series.half_rows or len(ask.shape) != 3:
        return np.asarray(0.0)
    _, head_dim, length = ask.shape
    query_rows = ask.flops / ((5 if ask.backward else 2) * head_dim * length)
    return np.asarray(series.half_rows * ask.units / np.maximum(query_rows, 1))


def _tiled_work(
    ask: _Ask, series: ComputeSeries, rows: Floats, sides: tuple[int, ...], bytes_per_flop: Floats
) -> Floats:
    """Arithmetic done over asked for, in whole tiles and waves, by the products of *rows* with one of *sides*."""
    columns, depth = sides
    if series.tiling is None:
        return _depth_work(series, depth)
    fill = series.half_depth * depth / max(depth, series.depth_from)
    asked = 2 * rows.sum(axis=-1) * columns * depth
    done = series.tiling.work(
        rows, columns, depth, fill=fill, units=ask.units, bytes_per_flop=np.asarray(bytes_per_flop)
    )
    return np.where(asked > 0, done / np.maximum(asked, 1), 1.0)


def _gradient_work(ask: _Ask, series: ComputeSeries) -> Floats:
    """Arithmetic done over asked for by gradients of each expert's weights: its rows are the depth of its tiles.

    There are many more tiles than compute units, of unequal depth, so that no wave is rounded up.
    """
    assert ask.rows is not None
    busy, total = (ask.rows > 0).sum(axis=-1), ask.rows.sum(axis=-1)
    padding = series.tiling.padding(*ask.shape) if series.tiling else 1.0
    return padding * _depth_work(series, total / np.maximum(busy, 1))


def _trust(ask: _Ask, curve: Curve, binding: Series) -> tuple[Grade, float]:
    """The grade and spread of a price: what was measured elsewhere, or in another format or direction, is scaled,
    or as the series says.
    """
    grade = binding.grade or curve.grade
    suits = all(binding.suits(ask.dtype, backward=ask.backward)) and binding.scaled_alike(ask.dtype)
    if curve.part == ask.accelerator.id and suits:
        return grade, curve.spread
    carried = binding.carried if grade == "measured" else grade
    return carried, float(np.hypot(curve.spread, SPREAD_OF_SCALING))
