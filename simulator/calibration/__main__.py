"""The measuring process: tables of points as lines of JSON on standard output. Started by `rackcast calibrate`.

One process for the tables of one GPU; one for each GPU, started together, for those of several. A shape that does not
run (too little memory, no such kernel on this part) is told and the others go on. Arguments: `quick` or `full`, the
number of GPUs, and the tables.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import Any

import torch

from simulator.calibration.clocks import Clocks
from simulator.calibration.plan import Table, tables

Tell = Callable[[dict[str, Any]], None]


def main(depth: str, gpus: int, asked: list[str]) -> None:
    """Measure the tables *asked* for; only the first of several processes speaks."""
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(rank)
    together = "RANK" in os.environ
    if together:
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    with Clocks() as clocks:
        for table in tables(quick=depth == "quick", gpus=gpus, drives=1):
            if table.name in asked:
                measure(table, clocks, _speak if rank == 0 else _keep_silent)
    if together:
        torch.distributed.destroy_process_group()


def measure(table: Table, clocks: Clocks, tell: Tell) -> None:
    """Tell every point of *table*, and at last how long it took and at which clocks."""
    torch.manual_seed(0)
    begun, module = time.monotonic(), import_module(f"simulator.calibration.{table.name}")
    clocks.seen()
    for shape in table.shapes:
        try:
            for found in module.measure(shape):
                tell({"table": table.name, "point": asdict(found)})
        except (RuntimeError, TypeError, ValueError, AttributeError, ImportError, OSError) as problem:
            tell({"table": table.name, "refused": {"shape": shape, "why": _short(problem)}})
        tell({"table": table.name, "shape_done": shape})
        gc.collect()
        if torch.cuda.memory_reserved() > torch.cuda.get_device_properties(0).total_memory // 2:
            torch.cuda.empty_cache()
    torch.cuda.empty_cache()
    tell({"table": table.name, "finished": {"wall_s": round(time.monotonic() - begun, 1), "clocks": clocks.seen()}})


def _short(problem: Exception) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:300]


def _speak(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _keep_silent(message: dict[str, Any]) -> None:
    del message


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
