"""A point: one measured kernel or collective. Free of torch, so that points can be read anywhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """One kernel, or a chain of kernels that a framework runs in one call."""

    kind: str
    """Kind of kernel as the cost curves name it."""
    name: str
    """What was called."""
    shape: tuple[int, ...]
    dtype: str
    flops: float
    bytes: float
    """Operands read and results written, each once."""
    seconds: float
    """Median of the timed calls."""
    low_s: float
    high_s: float
    """Tenth and ninetieth percentile."""
    backward: bool = False
    rows: tuple[int, ...] = ()
    """Grouped matmuls: rows of each expert."""
