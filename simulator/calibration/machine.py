"""What is here to be measured: `python -m simulator.calibration.machine` prints it as JSON.

A process of its own, so that nothing holds a GPU but the process that measures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from simulator.calibration.drive_mount import find_drive

SETTINGS = (
    "NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE",
    "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",
)  # fmt: skip
"""Variables of the environment that change what collectives do."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs and what drives them."""

    gpu: str
    """What the first one calls itself; only GPUs of its name are measured."""
    gpus: int
    memory_bytes: int
    compute_units: int
    l2_bytes: int
    driver: str
    torch: str
    cuda: str
    nccl: str
    joined: str
    """How the driver's tool says that two GPUs are linked, such as "NV18"; empty for one GPU."""
    drives: int = 0
    """NVMe drives beneath the file system that is measured; 0 where none can be written to."""
    drive_bytes: int = 0
    """What that file system holds."""
    settings: str = ""
    """Those of `SETTINGS` that are set, such as "NCCL_NVLS_ENABLE=0" (no reductions by the switch)."""


class NothingToMeasureError(OSError):
    """No GPU, or no PyTorch; the message says which, and what to do."""


def find() -> Machine:
    """Ask a process of its own. Raise :exc:`NothingToMeasureError`."""
    command = [sys.executable, "-m", "simulator.calibration.machine"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this program
    lines = ran.stdout.strip().splitlines()
    if ran.returncode or not lines:
        last = (ran.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise NothingToMeasureError(f"the process that looks for GPUs failed: {last}")
    told = json.loads(lines[-1])
    if "nothing" in told:
        raise NothingToMeasureError(told["nothing"])
    return Machine(**told)


def _look() -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        return {"nothing": f"calibrate needs PyTorch ({error}): pip install 'rackcast[calibrate]'"}
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip or "the CPU alone"
        return {"nothing": f"no GPU to measure: PyTorch {torch.__version__}, built for {built}, sees none here"}
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    first = torch.cuda.get_device_properties(0)
    alike = names.count(names[0])
    nccl = torch.cuda.nccl.version() if alike > 1 else ()
    mount = find_drive()
    machine = Machine(
        gpu=names[0],
        gpus=alike,
        memory_bytes=first.total_memory,
        compute_units=first.multi_processor_count,
        l2_bytes=getattr(first, "L2_cache_size", 0),
        driver=_tool("--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0].strip(),
        torch=torch.__version__,
        cuda=torch.version.cuda or torch.version.hip or "",
        nccl=".".join(map(str, nccl)),
        joined=_joined(_tool("topo", "-m")) if alike > 1 else "",
        drives=mount.drives if mount else 0,
        drive_bytes=mount.capacity_bytes if mount else 0,
        settings=" ".join(f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ),
    )
    return asdict(machine)


def _tool(*arguments: str) -> str:
    try:
        return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=False).stdout  # noqa: S603, S607
    except OSError:
        return ""


def _joined(matrix: str) -> str:
    """The entry of GPU0's row under GPU1."""
    for line in matrix.splitlines():
        if line.startswith("GPU0"):
            return (line.split() + [""] * 3)[2]
    return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_look()) + "\n")
