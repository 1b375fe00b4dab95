"""Files of hardware_profiles, written as YAML that people can read and change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.documents import dumped
from simulator.hardware.collective import Timings
from simulator.hardware.curve import Curve
from simulator.hardware.profile import written

DIGITS = 4


def curve_yaml(curve: Curve) -> str:
    """The file of a kind of kernel."""
    told = curve.model_dump(exclude_none=True, exclude_defaults=True)
    head = {key: told[key] for key in ("kind", "part", "source", "grade", "spread")}
    head["overhead"] = written(float(f"{curve.overhead:.{DIGITS}g}"), "s")
    rest = {
        key: _short(told[key]) for key in ("sustained", "serial", "choice", "compute", "memory", "notes") if key in told
    }
    return dumped(head | rest)


def timings_yaml(timings: Timings) -> str:
    """The file of a part's collectives."""
    told = timings.model_dump(exclude_defaults=True)
    told["bandwidth"] = written(timings.bandwidth, "B/s")
    return dumped(_short(told, digits=5))


def _short(tree: Any, digits: int = DIGITS) -> Any:
    """Numbers with so many digits as they are known to."""
    if isinstance(tree, Mapping):
        return {key: _short(value, digits) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_short(value, digits) for value in tree]
    if not isinstance(tree, float):
        return tree
    return int(tree) if tree.is_integer() else float(f"{tree:.{digits}g}")
