"""The sheet of a calibrated accelerator: a shipped one with what was measured here in its place, as a tree to write."""

from __future__ import annotations

from typing import Any

from simulator.calibration.machine import Machine
from simulator.hardware.accelerator import AcceleratorSheet
from simulator.hardware.figure import Figure
from simulator.hardware.profile import written

_HOST = ("kernel_launch", "framework_launch", "fused_launch")
_LOWER = {"measured": "scaled", "datasheet": "scaled", "scaled": "scaled", "assumed": "assumed"}


def sheet_tree(
    part: str, like: str, sheet: AcceleratorSheet, machine: Machine, ratios: tuple[float, float, float]
) -> dict[str, Any]:
    """*sheet* is the part's own, where the first two *ratios* are 1, or that of *like*.

    Ratios are how much faster the part is than *sheet* in arithmetic and memory, and how much longer its host takes
    for a launch.
    """
    own = ratios[:2] == (1.0, 1.0)
    why = f"measured beside {like}, whose share of its peak stands in"
    tree: dict[str, Any] = {"name": sheet.name if own else machine.gpu, "vendor": sheet.vendor}
    tree["dense_flops_per_s"] = {
        dtype: _entry(figure, "FLOP/s", own, why, ratios[0]) for dtype, figure in sheet.dense_flops_per_s.items()
    }
    tree["hbm_capacity"] = _seen(machine.memory_bytes, "B")
    tree["hbm_bandwidth"] = _entry(sheet.hbm_bandwidth, "B/s", own, why, ratios[1])
    tree |= {name: _entry(getattr(sheet, name), "s", ratios[2] == 1.0, _LAUNCHES, ratios[2]) for name in _HOST}
    tree["kernel_gap"] = _entry(sheet.kernel_gap, "s", own, f"as {like}", 1.0)
    if sheet.graph_gap is not None:
        tree["graph_gap"] = _entry(sheet.graph_gap, "s", own, f"as {like}", 1.0)
    if sheet.matmul_workspace is not None:
        tree["matmul_workspace"] = _entry(sheet.matmul_workspace, "B", own, f"as {like}", 1.0)
    tree["sm_count"] = _seen(machine.compute_units, "")
    if machine.l2_bytes:
        tree["l2"] = _seen(machine.l2_bytes, "B")
    if own and sheet.tdp_w is not None:
        tree["tdp_w"] = _entry(sheet.tdp_w, "", True, "", 1.0)
    tree["curves"] = [name for name in ((*sheet.curves,) if own else (like, *sheet.curves)) if name != part]
    tree["notes"] = f"calibrated as {machine.gpu}, driver {machine.driver}, torch {machine.torch}"
    return tree


_LAUNCHES = "in proportion to a small operator's launch on this host"


def _entry(figure: Figure[Any], unit: str, own: bool, why: str, factor: float) -> dict[str, Any]:
    """*figure* as it is where it is the part's *own*; else times *factor*, because of *why*, and no longer measured."""
    source = figure.source if own else f"{why}: {figure.source}"
    return {
        "value": _written(figure.value * factor, unit),
        "source": source,
        "grade": figure.grade if own else _LOWER[figure.grade],
    }


def _seen(value: float, unit: str) -> dict[str, Any]:
    return {"value": _written(value, unit), "source": "rackcast calibrate: what the driver says", "grade": "measured"}


def _written(value: float, unit: str) -> str | float:
    """Sizes to the byte, rates of arithmetic in TFLOP/s, the rest as people write it."""
    if unit == "FLOP/s":
        return f"{value / 1e12:.4g} TFLOP/s"
    if unit == "B":
        return f"{value:.0f} B"
    return written(value, unit) if unit else round(value, 3)
