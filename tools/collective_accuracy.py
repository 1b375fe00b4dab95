"""Writes docs/collectives.md and its chart: prices of collectives beside published measurements.

python tools/collective_accuracy.py [FACTS]

FACTS is the folder with collectives.csv and ground_truth/kernels_and_collectives.csv, by default ../shared/facts beside
the checkout. Without it there is nothing to compare with: the script says so and leaves the page as it is.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from collective_figures import own_timings, single_figures, without_switch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.documents import load
from simulator.hardware.cluster import Cluster, assemble
from simulator.hardware.collective import Run, Timings
from simulator.hardware.library import load_accelerator, load_fabric, load_node
from simulator.hardware.node import Node
from simulator.program.alone import alone_s
from simulator.report.paper import DOTS_PER_INCH, FAINT, INK
from simulator.shipped import shipped

ROOT = Path(__file__).parents[1]
PAGE, CHART = ROOT / "docs" / "collectives.md", ROOT / "docs" / "images" / "collectives.png"
START, END = "<!-- tables -->\n", "<!-- end of tables -->\n"
MIB = 2**20
SIZES = (512, 4096, 32768, 262144, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 512 * MIB)
PARTS = {
    "A100 SXM 80GB": "hgx-a100",
    "H100 SXM": "hgx-h100",
    "H200 SXM": "hgx-h200",
    "B200 SXM": "hgx-b200",
    "B300 SXM": "hgx-b300",
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
    "L40S": "pcie-l40s",
    "RTX PRO 6000 Server": "pcie-rtx-pro-6000",
}
OPERATIONS = {"alltoall": "all_to_all"}
SWEEPS = [  # (title, words of the source, words of the topology, node, fabric)
    ("DGX-H100, 8 ranks (dgxc-benchmarking)", "dgxc-benchmarking", "", "hgx-h100", "single-node"),
    ("HGX H200, 8 ranks, eager torch (ml-engineering)", "all_reduce_bench", "8x H200", "hgx-h200", "single-node"),
    ("HGX B200, 8 ranks, eager torch (ml-engineering)", "all_reduce_bench", "1x P6", "hgx-b200", "single-node"),
    ("Azure ND H100 v5, 8 ranks", "ND_H100_v5", "", "hgx-h100", "single-node"),
    ("Azure ND H200 v5, 8 ranks", "ND_H200_v5", "", "hgx-h200", "single-node"),
    ("Azure ND A100 v4, 8 ranks", "ND_A100_v4", "", "hgx-a100", "single-node"),
    ("DGX H100, one node (Vidur)", "h100_dgx_all_reduce", "1 node", "hgx-h100", "single-node"),
    ("DGX A100, one node (Vidur)", "a100_dgx_all_reduce", "1 node", "hgx-a100", "single-node"),
]
BETWEEN = [
    ("64 H100 on InfiniBand (CoreWeave)", "coreweave", "8 nodes", "hgx-h100", "rail-fat-tree-400g"),
    ("72 GB200, one rack, NVLS off (CoreWeave)", "coreweave", "1 rack", "gb200-nvl72", "nvl72-rail-400g"),
    ("144 GB200, two racks, NVLS off (CoreWeave)", "coreweave", "2 racks", "gb200-nvl72", "nvl72-rail-400g"),
    ("1440 GB200, 20 racks, NVLS off (CoreWeave)", "coreweave", "20 racks", "gb200-nvl72", "nvl72-rail-400g"),
    ("32 B200 on EFA (ml-engineering)", "all_reduce_bench", "EFA", "hgx-b200", "rail-fat-tree-400g"),
    ("DGX A100, two nodes (Vidur)", "a100_dgx_all_reduce", "2 node", "hgx-a100", "rail-fat-tree-200g-roce"),
]
ALL_REDUCES = {"nccl_all_reduce", "vidur_all_reduce"}
Row = dict[str, str]


@dataclass(frozen=True)
class Judged:
    """One measured row and its price."""

    title: str
    ranks: int
    size_bytes: float
    measured_s: float
    priced_s: float
    algorithms: str = ""

    @property
    def error(self) -> float:
        """Price over measurement, less one."""
        return self.priced_s / self.measured_s - 1.0


def main() -> None:
    """Replace what stands between the two marks of the page, and the chart."""
    facts = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared" / "facts"
    curves, rows = facts / "collectives.csv", facts / "ground_truth" / "kernels_and_collectives.csv"
    if not (curves.is_file() and rows.is_file()):
        print(f"no {curves} and {rows.name}: nothing to compare with, {PAGE.name} stays as it is")
        return
    published = _read(curves)
    parts = [part_errors(name, published) for name in PARTS]
    measured = _read(rows)
    inside = [judge(measured, *sweep) for sweep in SWEEPS]
    between = [judge(measured, *sweep) for sweep in BETWEEN]
    lines = [*_parts_table(parts), *_sweeps_table(inside), *single_figures(measured), *own_timings()]
    lines += _between_table(between)
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(before + START + "\n".join(lines) + "\n" + END + rest.partition(END)[2])
    chart(parts, inside, between).savefig(CHART, dpi=DOTS_PER_INCH, metadata={"Software": None})


def part_errors(name: str, published: list[Row]) -> dict[str, Any]:
    """Absolute errors of the curves of part *name*: with its own curve, without each point, without the curve."""
    node, own, without_point, without_part = load_node(PARTS[name], Path()), [], [], []
    donor = nearest(name)
    for row in published:
        if row["accelerator"] != name:
            continue
        operation, ranks = OPERATIONS.get(row["op"], row["op"]), int(row["ranks"])
        times_s = [float(row[f"us_{size}"]) * 1e-6 for size in SIZES]
        own += _errors(node, operation, ranks, times_s)
        without_part += _errors(_priced_by(node, donor), operation, ranks, times_s)
        without_point += _errors_without_each(ranks, times_s)
    return {"part": name, "own": own, "point": without_point, "donor": donor, "part_out": without_part}


def nearest(name: str) -> str:
    """The part whose links have the most alike rate, of the same kind; of several, the first."""
    rates = {other: load_node(node, Path()).scale_up.bandwidth.value for other, node in PARTS.items()}
    pcie = {other for other, rate in rates.items() if rate <= 64e9}
    alike = [other for other in PARTS if other != name and (other in pcie) == (name in pcie)]
    return min(alike, key=lambda other: abs(np.log(rates[other] / rates[name])))


def _priced_by(node: Node, donor: str) -> Node:
    part = load_node(PARTS[donor], Path()).scale_up.curves
    timings = load(shipped("hardware_profiles", "measured", str(part), "collectives.yaml"), Timings)
    links = node.scale_up
    collectives = timings.for_links(node.accelerator, links.bandwidth.value)
    if links.in_switch is None:
        collectives = {operation: timed.without_switch() for operation, timed in collectives.items()}
    return node.model_copy(update={"scale_up": links.model_copy(update={"collectives": collectives})})


def _errors(node: Node, operation: str, ranks: int, times_s: list[float]) -> list[float]:
    cluster = _cluster(node, "single-node", ranks)
    return [
        abs(alone_s(cluster, operation, ranks, size)[0] / time_s - 1)
        for size, time_s in zip(SIZES, times_s, strict=True)
    ]


def _errors_without_each(ranks: int, times_s: list[float]) -> Iterator[float]:
    points = list(zip(map(float, SIZES), times_s, strict=True))
    for out in range(1, len(points) - 1):
        rest = points[:out] + points[out + 1 :]
        run = Run(ranks=ranks, algorithm="ring", source="all points but one", points=tuple(rest))
        yield abs(float(run.seconds(points[out][0])) / points[out][1] - 1)


def judge(measured: list[Row], title: str, source: str, topology: str, node_name: str, fabric: str) -> list[Judged]:
    """The rows of one sweep of all-reduce, priced on the node and *fabric*."""
    found = []
    for row in measured:
        if source not in row["source"] or topology not in row["topology"] or row["op"] not in ALL_REDUCES:
            continue
        ranks, size, node = int(row["n_ranks"]), _size(row["size_bytes"]), load_node(node_name, Path())
        counted = re.match(r"(\d+) node\(s\) x (\d+) GPUs", row["topology"])
        if counted and counted[1] != "1":
            node = _with_accelerators(node, int(counted[2]))
        if "NVLS off" in title:
            node = without_switch(node)
        priced_s, algorithms = alone_s(_cluster(node, fabric, ranks), "all_reduce", ranks, size)
        found.append(Judged(title, ranks, size, _seconds(row, ranks, size), priced_s, ", ".join(algorithms)))
    return found


def _cluster(node: Node, fabric: str, accelerators: int) -> Cluster:
    return assemble(node, load_accelerator(node.accelerator, Path()), load_fabric(fabric, Path()), accelerators)


def _with_accelerators(node: Node, count: int) -> Node:
    links = node.scale_up.model_copy(update={"domain": count})
    return node.model_copy(update={"accelerators": count, "scale_up": links})


def _size(text: str) -> float:
    """Bytes; "33M (as printed)" is the 32 MiB of a sweep that doubles, printed in millions."""
    if text.isdigit():
        return float(text)
    millions = {"M": 1.0, "G": 1000.0}[text.split()[0][-1]] * float(text.split()[0][:-1])
    return float(2 ** round(np.log2(millions * 1e6)))


def _seconds(row: Row, ranks: int, size: float) -> float:
    value = float(row["measured"])
    if "busbw" in row["unit"]:
        return 2 * (ranks - 1) / ranks * size / (value * 1e9)
    return value * {"us": 1e-6, "ms": 1e-3, "ms (median)": 1e-3}[row["unit"]]


def _parts_table(parts: list[dict[str, Any]]) -> Iterator[str]:
    yield "## Curves of nine parts\n"
    yield "| part | points | own curve: median | worst | point left out: median | worst | from | median | worst |"
    yield "|---|--:|--:|--:|--:|--:|---|--:|--:|"
    for part in parts:
        cells = [_middle_and_worst(part[kind]) for kind in ("own", "point", "part_out")]
        yield f"| {part['part']} | {len(part['own'])} | {cells[0]} | {cells[1]} | {part['donor']} | {cells[2]} |"


def _sweeps_table(sweeps: list[list[Judged]]) -> Iterator[str]:
    yield "\n## Other measurements of an all-reduce inside a node\n"
    yield "| sweep | rows | from 8 MiB on: median | worst | below: median | worst |"
    yield "|---|--:|--:|--:|--:|--:|"
    for rows in sweeps:
        large = [abs(row.error) for row in rows if row.size_bytes >= 8 * MIB]
        small = [abs(row.error) for row in rows if row.size_bytes < 8 * MIB]
        yield f"| {rows[0].title} | {len(rows)} | {_middle_and_worst(large)} | {_middle_and_worst(small)} |"


def _between_table(sweeps: list[list[Judged]]) -> Iterator[str]:
    yield "\n## All-reduces between nodes\n"
    yield "| ranks | size | measured, us | priced, us | error | taken |"
    yield "|---|--:|--:|--:|--:|---|"
    for rows in sweeps:
        yield f"| **{rows[0].title}** | | | | | |"
        for row in rows:
            size = f"{row.size_bytes / MIB:,.5g} MiB"
            cells = f"{row.measured_s * 1e6:,.0f} | {row.priced_s * 1e6:,.0f} | {row.error:+.0%} | {row.algorithms}"
            yield f"| {row.ranks} | {size} | {cells} |"


def _middle_and_worst(errors: list[float]) -> str:
    return f"{median(errors):.1%} | {max(errors):.0%}" if errors else " | "


def chart(parts: list[dict[str, Any]], inside: list[list[Judged]], between: list[list[Judged]]) -> Figure:
    """Left: errors of each part. Right: bus bandwidth of all-reduces, measured and priced."""
    figure = Figure(figsize=(13.333, 6.2), facecolor="white", layout="constrained")
    bars, one, many = figure.subplots(1, 3)
    _draw_parts(bars, parts)
    _draw_sweeps(one, [inside[0], inside[2], inside[5]], "All-reduce in a node, GB/s of bus bandwidth")
    _draw_sweeps(many, between[:5], "All-reduce between nodes, GB/s")
    return figure


def _draw_parts(axes: Axes, parts: list[dict[str, Any]]) -> None:
    places = np.arange(len(parts))[::-1]
    for offset, kind, label, colour in (
        (0.2, "point", "a point left out", "#56B4E9"),
        (-0.2, "part_out", "", "#D55E00"),
    ):
        middle = [100 * median(part[kind]) for part in parts]
        axes.barh(places + offset, middle, height=0.36, color=colour, label=label or "the part left out")
        for place, part, length in zip(places, parts, middle, strict=True):
            note = f"{length:.0f} %" + (f" from {part['donor']}" if kind == "part_out" else "")
            axes.text(length + 0.5, place + offset, note, va="center", fontsize=8, color=FAINT)
    axes.set_yticks(places, [part["part"] for part in parts])
    axes.set_xlim(0, 90)
    axes.set_title("Median error of the timed curves, %", loc="left", fontsize=12, color=INK)
    axes.legend(frameon=False, loc="center right")
    _bare(axes)


def _draw_sweeps(axes: Axes, sweeps: list[list[Judged]], title: str) -> None:
    colours = ("#0072B2", "#009E73", "#E69F00", "#CC79A7", "#D55E00")
    for rows, colour in zip(sweeps, colours, strict=False):
        sizes = [row.size_bytes for row in rows]
        for times, style in (([row.measured_s for row in rows], "o"), ([row.priced_s for row in rows], "-")):
            rates = [
                2 * (row.ranks - 1) / row.ranks * row.size_bytes / time / 1e9
                for row, time in zip(rows, times, strict=True)
            ]
            axes.plot(sizes, rates, style, color=colour, markersize=4.5, label=rows[0].title if style == "o" else None)
    axes.set_xscale("log", base=2)
    ticks = [2**power for power in range(10, 36, 5)]
    axes.set_xticks(ticks, ["1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB", "32 GiB"])
    axes.set_title(f"{title}\n(dots measured, lines priced)", loc="left", fontsize=12, color=INK)
    axes.set_ylim(top=1150)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    _bare(axes)


def _bus_gb_per_s(row: Judged, time_s: float) -> float:
    return 2 * (row.ranks - 1) / row.ranks * row.size_bytes / time_s / 1e9


def _bare(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
