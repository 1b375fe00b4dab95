"""Further rows of docs/collectives.md: single figures that others print, and our own timings of H200.

Read by collective_accuracy.py, which writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

from ruamel.yaml import YAML

from simulator.calibration.collective_timings import groups
from simulator.calibration.store import read_all
from simulator.hardware.cluster import assemble
from simulator.hardware.collective import passes
from simulator.hardware.library import load_accelerator, load_fabric, load_node
from simulator.hardware.node import Node
from simulator.program.alone import Benchmarked, alone_s
from simulator.shipped import shipped

Row = dict[str, str]
GIB = 2**30
SOURCES = ("ml-engineering network/README.md", "send_recv.csv")
NODES = {
    "H200": "hgx-h200",
    "B200": "hgx-b200",
    "A100": "hgx-a100",
    "MI300X": "mi300x-oam",
    "H100 DGX": "hgx-h100",
}
OPERATIONS: dict[str, Benchmarked] = {
    "all_reduce": "all_reduce",
    "nccl_all_reduce": "all_reduce",
    "nccl_all_reduce NVLS": "all_reduce",
    "nccl_all_reduce Ring (NVLS off)": "all_reduce",
    "nccl_all_gather": "all_gather",
    "nccl_reduce_scatter": "reduce_scatter",
    "vidur_send_recv": "send",
}
_OFF = "(NVLS off)"
OWN: dict[str, tuple[str, Benchmarked]] = {
    "all-gather": ("all_gather", "all_gather"),
    "reduce-scatter": ("reduce_scatter", "reduce_scatter"),
    "all-reduce": ("all_reduce", "all_reduce"),
    "all-to-all": ("all_to_all", "all_to_all"),
    "broadcast": ("one_to_all", "one_to_all"),
    "send to the next, all at once": ("send, ring", "send"),
    "send, one alone": ("send", "send"),
}
"""Names of own points, and the operations that they are."""


@dataclass(frozen=True)
class Figure:
    """One row and its price."""

    title: str
    ranks: int
    size_bytes: float
    measured_s: float
    priced_s: float

    @property
    def error(self) -> float:
        """Price over measurement, less one."""
        return self.priced_s / self.measured_s - 1.0


def single_figures(rows: list[Row]) -> Iterator[str]:
    """The table of figures that are no sweep: groups that are part of a node, NVLS off, sends, other parts."""
    yield "\n## Single figures\n"
    yield "| what | ranks | size | measured, us | priced, us | error |"
    yield "|---|--:|--:|--:|--:|--:|"
    for row in rows:
        if row["op"] in OPERATIONS and any(words in row["source"] for words in SOURCES) and _alone(row):
            one = _judged(row)
            size = f"{one.size_bytes / 2**20:,.5g} MiB"
            cells = f"{one.measured_s * 1e6:,.0f} | {one.priced_s * 1e6:,.0f} | {one.error:+.0%}"
            yield f"| {one.title} | {one.ranks} | {size} | {cells} |"


def _alone(row: Row) -> bool:
    """Not one point of the sweeps that all_reduce_bench printed."""
    return "all_reduce_bench" not in row["source"]


def _judged(row: Row) -> Figure:
    operation, ranks = OPERATIONS[row["op"]], int(row["n_ranks"])
    node = load_node(NODES[row["gpu"]], Path())
    nodes = int((re.match(r"(\d+) node", row["topology"]) or [0, "1"])[1])
    if nodes > 1:
        node = _holding(node, ranks // nodes)
    size = _size(row)
    fabric = load_fabric("rail-fat-tree-400g" if nodes > 1 else "single-node", Path())
    cluster = assemble(
        without_switch(node) if _OFF in row["op"] else node, load_accelerator(node.accelerator, Path()), fabric, ranks
    )
    seconds = float(row["measured"]) * 1e-3
    if "busbw" in row["unit"]:
        on_wire = passes(operation) * (ranks - 1) / ranks * size  # type: ignore[arg-type]
        seconds = on_wire / (float(row["measured"]) * 1e9)
    title = f"{row['gpu']}, {operation.replace('_', '-')}" + (" by links alone" if _OFF in row["op"] else "")
    title += ", two nodes" if nodes > 1 else ""
    return Figure(title, ranks, size, seconds, alone_s(cluster, operation, ranks, size)[0])


def _size(row: Row) -> float:
    """Of the row, or as its unit has it in brackets: "GB/s busbw (4GiB)"."""
    in_unit = re.search(r"\((\d+)GiB\)", row["unit"])
    return float(in_unit[1]) * GIB if in_unit else float(row["size_bytes"])


def _holding(node: Node, count: int) -> Node:
    links = node.scale_up.model_copy(update={"domain": count})
    return node.model_copy(update={"accelerators": count, "scale_up": links})


def without_switch(node: Node) -> Node:
    """*node* whose switches do not reduce (`NCCL_NVLS_ENABLE=0`)."""
    links = node.scale_up
    timed = {operation: one.without_switch() for operation, one in links.collectives.items()}
    return node.model_copy(update={"scale_up": links.model_copy(update={"in_switch": None, "collectives": timed})})


def own_timings() -> Iterator[str]:
    """The table of our own timings between H200 beside the prices of the part, without the switch if it was off."""
    folder = shipped("hardware_profiles", "measured", "h200-sxm")
    clock_s = float(YAML(typ="safe").load(folder / "provenance.yaml")["clock_s"])
    node = load_node("hgx-h200", Path())
    stored = next(one for one in read_all(folder / "points") if one.name == "collectives")
    if "NCCL_NVLS_ENABLE=0" in stored.machine.settings:
        node = without_switch(node)
    yield "\n## H200 of our own\n"
    yield "| operation | ranks | points | from 8 MiB on: median | worst | below: median | worst |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for ranks, (title, (name, operation)) in product(groups(stored.points), OWN.items()):
        points = [point for point in stored.points if (point.name, point.shape[1]) == (name, ranks)]
        cluster = assemble(node, load_accelerator(node.accelerator, Path()), load_fabric("single-node", Path()), ranks)
        errors = [
            (point.bytes, abs(alone_s(cluster, operation, ranks, point.bytes)[0] / (point.seconds - clock_s) - 1))
            for point in points
        ]
        cells = []
        for large in (True, False):
            some = [error for size, error in errors if (size >= 8 * 2**20) == large]
            cells += [f"{median(some):.1%} | {max(some):.0%}"] if some else []
        if cells:
            yield f"| {title} | {ranks} | {len(points)} | {' | '.join(cells)} |"
