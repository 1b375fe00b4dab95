"""Prices beside the shipped points: run as a script, it prints the table of residuals.

A point that was timed as a chain of kernels is priced as that chain. What the clock adds to a call timed alone comes on
top of every price.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet
from ruamel.yaml import YAML

from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator
from simulator.shipped import shipped

FOLDER = shipped("hardware_profiles", "measured", "h200-sxm")
H200 = load_accelerator("h200-sxm", Path())
LONG_S = 30e-6
"""Shorter calls hold too much of the clock and of cold caches to be held to a limit."""
POWER_LIMITED_FLOPS = 5e11
"""Larger matmuls, back to back for over 10 ms, drive the chip into its power limit. A step does not."""
SORT_LAUNCHES = 6

CHAINS = {  # name of a point: kinds, shares of its bytes and formats of the kernels that it timed
    "cross_entropy fp32 backward, filled first": [("loss", 1, "fp32"), ("fill", 1 / 3, "fp32")],
}


def points(file="points.parquet"):
    return [point for point in pyarrow.parquet.read_table(FOLDER / file).to_pylist() if point["kind"] != "launch"]


def clock_s():
    return float(YAML(typ="safe").load(FOLDER / "provenance.yaml")["clock_s"])


def sort_s(positions):
    moved = SORT_LAUNCHES * 32 * positions
    return SORT_LAUNCHES * float(kernel_time(H200, "sort", 0, moved / SORT_LAUNCHES).seconds)


def priced_s(point):
    """What the curves say the call of *point* takes on the device, without the clock."""
    shape, name, back = tuple(point["shape"]), point["name"], point["backward"]
    if name in CHAINS:
        parts = CHAINS[name]
        return sum(
            float(kernel_time(H200, k, 0, b * point["bytes"], (), d, backward=back).seconds) for k, b, d in parts
        )
    if point["kind"] == "sort":
        return sort_s(shape[0] * shape[2])
    extra = {}
    if point["kind"] == "grouped_gemm":
        _, _, inner, out, _ = shape
        extra = {"rows": np.array(point["rows"]), "weight_gradient": name.startswith("dW")}
        shape = (out, inner) if name.startswith("y") else (inner, out)
    ask = (H200, point["kind"], point["flops"], point["bytes"], shape[:3], point["dtype"])
    seconds = float(kernel_time(*ask, backward=back, alone=True, **extra).seconds)
    return seconds + (sort_s(shape[0]) if point["kind"] == "scatter_put" else 0.0)


def group(point):
    """The line of the table that *point* belongs to."""
    kind, name = point["kind"], point["name"]
    if kind not in {"gemm", "grouped_gemm", "attention", "loss"}:
        return kind, point["dtype"]
    layout = name.split(", ")[0] if kind != "loss" else ("backward" if point["backward"] else "forward")
    limited = kind.endswith("gemm") and point["flops"] > POWER_LIMITED_FLOPS
    return kind, f"{layout}, power-limited" if limited else layout


def residuals():
    """{(kind, layout): errors of the calls longer than `LONG_S`}, an error being priced over measured, minus 1."""
    clock, found = clock_s(), defaultdict(list)
    for point in points():
        if point["seconds"] > LONG_S:
            found[group(point)].append((priced_s(point) + clock) / point["seconds"] - 1)
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
