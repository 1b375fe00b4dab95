"""Measure and write one line a point; under torchrun, collectives. `--quick` leaves most shapes out."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import torch

KINDS = ("launch", "gemm", "grouped_gemm", "attention", "elementwise", "matrix_rows", "loss", "tensor_lists", "router")


def main(out: str, asked: list[str], *, quick: bool) -> None:
    """Append to *out* the points of the kinds *asked* for, or of all that this number of processes can run."""
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(rank)
    together = "RANK" in os.environ
    if together:
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    with Path(out if rank == 0 else os.devnull).open("a") as file:
        for kind in asked or (["collectives"] if together else KINDS):
            for found in import_module(f"simulator.calibration.{kind}").measure(quick=quick):
                file.write(json.dumps(asdict(found)) + "\n")
    if together:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    names = [argument for argument in sys.argv[1:] if argument != "--quick"]
    if not names:
        sys.exit("usage: python -m simulator.calibration POINTS.jsonl [--quick] [kind ...]; kinds: " + ", ".join(KINDS))
    main(names[0], names[1:], quick="--quick" in sys.argv)
