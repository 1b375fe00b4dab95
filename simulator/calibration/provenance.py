"""Where a set comes from, as the file provenance.yaml beside its curves says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.calibration.store import Stored

METHOD = (
    "Medians of calls between CUDA events, the tenth and ninetieth percentile kept; caches flushed before each call by "
    "a write of 256 MiB, and the device asleep until the host has issued the call. Bytes are operands read and results "
    "written, each once. Rows of skewed experts come from a seeded generator. Pageable copies by the host's clock."
)
CLOCK = (
    "What a call timed alone takes longer than its kernel among others: a small kernel between events, less what the "
    "profiler says it takes."
)


def provenance(tables: Sequence[Stored], clock_s: float) -> dict[str, Any]:
    """The machine of the latest table, then each table with its own."""
    latest = max(tables, key=lambda table: table.date)
    machine, sm = latest.machine, [table.clocks["sm_mhz"] for table in tables if "sm_mhz" in table.clocks]
    told = {
        "date": latest.date,
        "gpu": machine.gpu,
        "gpus": max(table.machine.gpus for table in tables),
        "joined": next((table.machine.joined for table in tables if table.machine.joined), ""),
        "driver": machine.driver,
        "cuda": machine.cuda,
        "torch": machine.torch,
        "nccl": next((table.machine.nccl for table in tables if table.machine.nccl), ""),
        "sm_clock": f"{min(s[0] for s in sm):g} to {max(s[2] for s in sm):g} MHz" if sm else "not told",
        "script": "rackcast calibrate",
        "method": METHOD,
        "clock_s": float(f"{clock_s:.3g}"),
        "clock_source": CLOCK,
    }
    return told | {"tables": {table.name: _table(table) for table in tables}}


def _table(table: Stored) -> dict[str, Any]:
    told: dict[str, Any] = {"date": table.date, "points": len(table.points), "wall_s": table.wall_s}
    told |= {"gpus": table.machine.gpus, "driver": table.machine.driver}
    if table.machine.settings:
        told["settings"] = table.machine.settings
    told |= {name: [round(value, 1) for value in values] for name, values in table.clocks.items()}
    if table.refused:
        told["refused"] = [f"{tuple(one['shape'])}: {one['why']}" for one in table.refused]
    return told
