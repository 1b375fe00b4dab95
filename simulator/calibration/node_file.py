"""The node of a calibrated machine: a shipped one with like accelerators, and what was measured here in its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.calibration import findings
from simulator.calibration.machine import Machine
from simulator.calibration.point import Point
from simulator.hardware.library import load_node
from simulator.hardware.node import Node
from simulator.hardware.node_profile import carriers, taken_over
from simulator.hardware.profile import Entry, written

SOURCE = "rackcast calibrate"
_OTHERWISE = "hgx-h200"
_COPIES = {
    "h2d": "pinned, to the GPU",
    "d2h": "pinned, to the host",
    "both": "pinned, both ways",
    "pageable_h2d": "pageable, to the GPU",
    "pageable_d2h": "pageable, to the host",
}


def node_tree(part: str, like: str, points: Sequence[Point], machine: Machine) -> tuple[dict[str, Any], float]:
    """The node as a tree to write, and the rate of its scale-up links, bytes a second.

    It is like the first shipped node whose accelerator is *part*, else *like*, else an HGX H200.
    """
    node_id, node = _like(part, like)
    tree = taken_over(node, node_id, machine.gpus, "not measured here")
    tree |= {"name": f"{machine.gpus} x {part}, calibrated", "accelerator": part, "accelerators": machine.gpus}
    links = tree["scale_up"]
    links["domain"] = machine.gpus
    links.pop("beyond_node", None)
    if any(point.kind == "all_gather" for point in points):
        links["curves"] = part
    taken = findings.compute_taken(points)
    if taken is not None:
        why = f"{SOURCE}: kernels beside collectives of {machine.gpus} GPUs"
        links["compute_taken"] = Entry(round(taken, 3), why, "measured")
    tree["host_link"] |= _host_link(points)
    drives = _drives(points, machine)
    if drives:
        tree["nvme"] = drives
    tree["notes"] = f"calibrated as {machine.gpus} x {machine.gpu}; what was not measured is as {node_id}"
    return _plain(tree), node.scale_up.bandwidth.value


def _host_link(points: Sequence[Point]) -> dict[str, Entry]:
    found = {}
    for name, copy in _COPIES.items():
        rate = findings.host_copy_bytes_per_s(points, copy)
        if rate is not None:
            found[name] = Entry(written(rate, "B/s"), f"{SOURCE}: the largest copy, {copy}", "measured")
    latency_s = findings.host_copy_latency_s(points)
    if latency_s is not None:
        why = f"{SOURCE}: copies of 1 to 16 MiB beside their bytes at the rate of the largest"
        found["latency"] = Entry(written(latency_s, "s"), why, "measured")
    return found


def _drives(points: Sequence[Point], machine: Machine) -> dict[str, Entry]:
    """The drives that were measured; nothing where some of it is missing."""
    why = f"{SOURCE}: a file system on {machine.drives} NVMe drive{'s' * (machine.drives > 1)}, direct I/O"
    rates = {way: findings.drive_bytes_per_s(points, way) for way in ("read", "write")}
    waits = {f"{way}_latency": findings.drive_latency_s(points, way) for way in ("read", "write")}
    told = {name: written(rate, "B/s") for name, rate in rates.items() if rate is not None}
    told |= {name: written(seconds, "s") for name, seconds in waits.items() if seconds is not None}
    if len(told) < len(rates) + len(waits):
        return {}
    known = {"drives": machine.drives, "capacity": written(machine.drive_bytes, "B")}
    return {name: Entry(value, why, "measured") for name, value in (known | told).items()}


def _like(part: str, like: str) -> tuple[str, Node]:
    carried = carriers()
    name = next((carried[wanted][0] for wanted in (part, like) if wanted in carried), _OTHERWISE)
    return name, load_node(name, Path())


def _plain(block: Any) -> Any:
    if isinstance(block, Entry):
        return {"value": block.value, "source": block.source, "grade": block.grade}
    return {key: _plain(value) for key, value in block.items()} if isinstance(block, dict) else block
