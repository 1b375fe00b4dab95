"""The summary as a file: sorted keys, and none of the figures that differ from run to run on one input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, BinaryIO

HOST_TIMINGS = ("wall_s",)
"""Keys of `engine` that measure this machine and not the cluster."""


def write_summary(summary: Mapping[str, Any], file: BinaryIO) -> None:
    """Write *summary* as indented JSON, without :data:`HOST_TIMINGS`."""
    engine = {key: value for key, value in summary.get("engine", {}).items() if key not in HOST_TIMINGS}
    stable = {**summary, "engine": engine}
    text = json.dumps(stable, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    file.write(text.encode() + b"\n")
