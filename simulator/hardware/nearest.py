"""Which measured part is most like another: by the logarithms of peaks, memory rates, compute units and caches."""

from __future__ import annotations

import math
from collections.abc import Mapping

from simulator.hardware.accelerator import AcceleratorSheet


def nearest(sheet: AcceleratorSheet, measured: Mapping[str, AcceleratorSheet]) -> list[str]:
    """The ids of *measured*, most alike first; ties by id."""
    return sorted(measured, key=lambda id_: (round(distance(sheet, measured[id_]), 9), id_))


def distance(one: AcceleratorSheet, other: AcceleratorSheet) -> float:
    """Mean of the absolute logarithms of the ratios of what both tell: 0 for equals, 0.69 where all differ by two."""
    pairs = [
        (one.dense_flops_per_s.get("bf16"), other.dense_flops_per_s.get("bf16")),
        (one.hbm_bandwidth, other.hbm_bandwidth),
        (one.sm_count, other.sm_count),
        (one.l2, other.l2),
    ]
    found = [abs(math.log(a.value / b.value)) for a, b in pairs if a is not None and b is not None]
    return sum(found) / len(found)
