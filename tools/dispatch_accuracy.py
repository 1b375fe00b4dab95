"""Writes the table of expert exchanges in docs/collectives.md: prices beside timings of DeepEP and CloudMatrix384.

python tools/dispatch_accuracy.py [FACTS]

FACTS holds ground_truth/kernels_and_collectives.csv, by default ../shared/facts beside the checkout; without it the
page stays as it is.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.hardware.library import build_cluster
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.program.exchanges import Mix, exchanges
from simulator.program.network import Network
from simulator.routing.coverage import Choice, reach

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "collectives.md"
START, END = "<!-- exchanges -->\n", "<!-- end of exchanges -->\n"
EXPERTS, TOP_K, NODE = 256, 8, 8
ROW_BYTES = {"dispatch": 7168 + 7168 // 128 * 4, "combine": 2 * 7168}
"""Of a hidden width of 7168: one byte an element and four for each scale of 128 of them; bf16 on the way home."""
SOURCES = {  # words of the source: (title, node, fabric)
    "docs/legacy.md": ("DeepEP V1 on H800", "hgx-h800", "rail-fat-tree-400g"),
    "0.5.6.post2": ("DeepEP in SGLang on H100 (aiconfigurator)", "hgx-h100", "rail-fat-tree-400g"),
    "V2 table": ("DeepEP V2", "", "rail-fat-tree-400g"),
}
V2_NODES = {"SM90": "hgx-h100", "SM100": "hgx-b200"}
CLOUD_MATRIX_US = {("dispatch", 8): 116, ("dispatch", 256): 152, ("combine", 8): 118, ("combine", 256): 149}
"""CloudMatrix384 on 910C, 128 tokens a rank (arXiv:2506.12708)."""


@dataclass(frozen=True)
class Asked:
    """One row: a way, a direction, ranks and tokens."""

    title: str
    way: str
    direction: str
    ranks: int
    tokens: int
    nodes_a_token: int | None
    """Nodes that routing keeps a token's experts within; None: any."""


def main() -> None:
    """Replace what stands between the two marks of the page."""
    facts = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared" / "facts"
    file = facts / "ground_truth" / "kernels_and_collectives.csv"
    if not file.is_file():
        print(f"no {file}: nothing to compare with, {PAGE.name} stays as it is")
        return
    with file.open(newline="") as opened:
        rows = [row for row in csv.DictReader(opened) if re.match(r"deepep_(normal|lowlatency|v2)", row["op"])]
    lines = ["| exchange | ranks | tokens | measured, us | priced, us | error |", "|---|--:|--:|--:|--:|--:|"]
    lines += [line for row in rows for line in _line(row)]
    for (direction, ranks), measured_us in CLOUD_MATRIX_US.items():
        asked = Asked("CloudMatrix384", "low_latency", direction, ranks, 128, None)
        lines.append(_row(asked, measured_us * 1e-6, priced_s(asked, "cloudmatrix-910c", "cloudmatrix-384")))
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(before + START + "\n".join(lines) + "\n" + END + rest.partition(END)[2])


def _line(row: dict[str, str]) -> Iterator[str]:
    found = next(((words, one) for words, one in SOURCES.items() if words in row["source"]), None)
    if found is None:
        return
    words, (title, node, fabric) = found
    node = node or V2_NODES[row["gpu"]]
    direction = "combine" if "combine" in row["op"] else "dispatch"
    way = "low_latency" if "lowlatency" in row["op"] else "hierarchical"
    tokens = re.search(r"(\d+)(K?) tokens", row["shape"])
    count = int(tokens[1]) * (1024 if tokens[2] else 1) if tokens else 4096
    limited = 4 if words == "docs/legacy.md" and way == "hierarchical" else None
    asked = Asked(title, way, direction, int(row["n_ranks"]), count, limited)
    measured_s = float(row["measured"]) * 1e-6
    if "GB/s" in row["unit"]:
        # Printed bandwidths count what a token reaches, its own node or rank included.
        mix = mix_of(asked)
        reached = mix.entered if "RDMA" in row["unit"] else mix.reached
        measured_s = count * reached.sum() * ROW_BYTES[direction] / (float(row["measured"]) * 1e9)
    yield _row(asked, measured_s, priced_s(asked, node, fabric))


def mix_of(asked: Asked) -> Mix:
    """What even routing reaches, kept within so many nodes where it is."""
    nodes = max(1, asked.ranks // NODE)
    choice = Choice(TOP_K, nodes, min(asked.nodes_a_token or nodes, nodes))
    reached, entered = (reach(np.ones((1, sets, EXPERTS // sets)), choice)[0] for sets in (asked.ranks, nodes))
    return Mix(asked.tokens, np.full(asked.ranks, asked.tokens * TOP_K / asked.ranks), reached, entered)


def priced_s(asked: Asked, node: str, fabric: str) -> float:
    """Seconds of the exchange alone on *node* and *fabric*."""
    cluster = build_cluster(node, fabric, asked.ranks, Path())
    mesh = Mesh(dp_shard=asked.ranks, ep=asked.ranks)
    placement = Placement(mesh, apart(mesh.groups(), asked.ranks), [level.size for level in cluster.levels])
    sent = exchanges()[asked.way].sent(mix_of(asked)) * ROW_BYTES[asked.direction]
    transfer = Network(cluster, placement, mesh).exchange(sent, exchanges()[asked.way])
    return float(transfer.duration_ns.max()) / 1e9 if transfer else 0.0


def _row(asked: Asked, measured_s: float, seconds: float) -> str:
    cells = f"{measured_s * 1e6:,.0f} | {seconds * 1e6:,.0f} | {seconds / measured_s - 1:+.0%}"
    kind = "low latency" if asked.way == "low_latency" else "normal"
    return f"| {asked.title}, {kind} {asked.direction} | {asked.ranks} | {asked.tokens:,} | {cells} |"


if __name__ == "__main__":
    main()
