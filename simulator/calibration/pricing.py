"""Points priced by curves, the way that forecasts price kernels.

A point that was timed as a chain of kernels is priced as that chain. What the clock adds to a call timed alone is not
part of a price.
"""

from __future__ import annotations

import numpy as np

from simulator.calibration.point import Point
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.kernel_time import kernel_time

SORT_LAUNCHES = 6
"""Kernels of a radix sort of 64-bit keys."""
_SORTED_BYTES = 32 * SORT_LAUNCHES
"""Of each key and value, over all its launches."""
CHAINS = frozenset({"sort", "scatter_put"})
"""Kinds whose call is a chain of unequal kernels, so that its time tells none of them: curves follow profiled steps."""
_GRADIENT_OF_LOSS = "cross_entropy fp32 backward, filled first"


def priced_s(point: Point, accelerator: Accelerator) -> float:
    """Device seconds of the call of *point*, alone. Raise :exc:`KeyError` for a kind that no curve is known for."""
    if point.name == _GRADIENT_OF_LOSS:
        filled = kernel_time(accelerator, "fill", 0, point.bytes / 3, (), "fp32").seconds
        return _plain_s(point, accelerator) + float(filled)
    if point.kind == "sort":
        return _sort_s(point.shape[0] * point.shape[2], accelerator)
    if point.kind == "scatter_put":
        return _plain_s(point, accelerator) + _sort_s(point.shape[0], accelerator)
    return _grouped_s(point, accelerator) if point.kind == "grouped_gemm" else _plain_s(point, accelerator)


def _plain_s(point: Point, accelerator: Accelerator) -> float:
    shape = point.shape[:3] if point.flops else ()
    work = (point.flops, point.bytes, shape, point.dtype)
    return float(kernel_time(accelerator, point.kind, *work, backward=point.backward, alone=True).seconds)


def _grouped_s(point: Point, accelerator: Accelerator) -> float:
    _, _, inner, out, _ = point.shape
    found = kernel_time(
        accelerator,
        point.kind,
        point.flops,
        point.bytes,
        (out, inner) if point.name.startswith("y") else (inner, out),
        point.dtype,
        rows=np.array(point.rows),
        backward=point.backward,
        weight_gradient=point.name.startswith("dW"),
        alone=True,
    )
    return float(found.seconds)


def _sort_s(keys: int, accelerator: Accelerator) -> float:
    each = kernel_time(accelerator, "sort", 0, _SORTED_BYTES * keys / SORT_LAUNCHES)
    return SORT_LAUNCHES * float(each.seconds)
