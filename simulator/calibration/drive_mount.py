"""The NVMe drives of this machine that a file can be written to: where they are mounted, and how many there are."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_KERNEL = Path("/sys/class/block")
_MOUNTS = Path("/proc/mounts")


@dataclass(frozen=True, slots=True)
class DriveMount:
    """A file system on NVMe drives."""

    folder: str
    drives: int
    """Drives that it is striped over."""
    capacity_bytes: int


def find_drive(mounts: Path = _MOUNTS, kernel: Path = _KERNEL) -> DriveMount | None:
    """The file system with most free space among those on NVMe drives where this user may write; None where there is
    none. *mounts* lists what is mounted, *kernel* has a folder for each block device.
    """
    found: dict[DriveMount, int] = {}
    for line in mounts.read_text().splitlines() if mounts.is_file() else ():
        device, folder, *_ = line.split()
        drives = _drives(kernel, Path(device).resolve().name)
        if drives and os.access(folder, os.W_OK):
            usage = shutil.disk_usage(folder)
            found[DriveMount(folder, drives, usage.total)] = usage.free
    return max(found, key=lambda one: found[one], default=None)


def _drives(kernel: Path, device: str) -> int:
    """NVMe drives beneath *device*: it, or the members of an array or a volume; 0 if there are others too."""
    if device.startswith("nvme"):
        return 1
    members = kernel / device / "slaves"
    counts = [_drives(kernel, member.name) for member in members.iterdir()] if members.is_dir() else []
    return sum(counts) if all(counts) else 0
