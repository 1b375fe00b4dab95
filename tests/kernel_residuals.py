"""Prices beside the shipped points: run as a script, it prints the table of residuals.

What the clock adds to a call timed alone comes on top of every price.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from ruamel.yaml import YAML

from simulator.calibration.pricing import priced_s
from simulator.calibration.stand_ins import OWN
from simulator.calibration.store import read_all
from simulator.hardware.library import load_accelerator
from simulator.shipped import shipped

FOLDER = shipped("hardware_profiles", "measured", "h200-sxm")
H200 = load_accelerator("h200-sxm", Path())
LONG_S = 30e-6
"""Shorter calls hold too much of the clock and of cold caches to be held to a limit."""
POWER_LIMITED_FLOPS = 5e11
"""Larger matmuls, one after the other, drive the chip into its power limit."""


def points(*tables):
    """The points of some tables, or of all."""
    return [p for stored in read_all(FOLDER / "points") if not tables or stored.name in tables for p in stored.points]


def clock_s():
    return float(YAML(typ="safe").load(FOLDER / "provenance.yaml")["clock_s"])


def group(point):
    """The line of the table that *point* belongs to."""
    kind, name = point.kind, point.name
    if kind not in {"gemm", "grouped_gemm", "attention", "loss"}:
        return kind, point.dtype
    layout = name.split(", ")[0] if kind != "loss" else ("backward" if point.backward else "forward")
    limited = kind.endswith("gemm") and point.flops > POWER_LIMITED_FLOPS
    return kind, f"{layout}, power-limited" if limited else layout


def residuals():
    """{(kind, layout): errors of the calls longer than `LONG_S`}, an error being priced over measured, minus 1.

    Own kernels are left out: curves price the public ones.
    """
    clock, found = clock_s(), defaultdict(list)
    for point in points():
        if point.seconds > LONG_S and point.kind in H200.curves and not point.name.startswith(OWN):
            found[group(point)].append((priced_s(point, H200) + clock) / point.seconds - 1)
    return {key: np.array(errors) for key, errors in sorted(found.items())}


def table():
    lines = [f"{'kind':18}{'layout or format':32}{'points':>7}{'median':>8}{'90 %':>8}{'worst':>8}{'mean':>8}"]
    for (kind, layout), errors in residuals().items():
        size = np.abs(errors)
        figures = (np.median(size), np.quantile(size, 0.9), size.max(), errors.mean())
        lines.append(f"{kind:18}{layout:32}{len(errors):7}" + "".join(f"{x:8.1%}" for x in figures))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
