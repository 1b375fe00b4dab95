"""Prints the figures that docs and closing notes quote about routing traces, one table after the other.

python tools/routing_figures.py TRACE [TRACE ...]           # recordings, such as DeepSeek-V3's
python tools/routing_figures.py --cases 2,8 TRACE > cases.json  # of 2 and 8 ranks, for tests/validation/measure_skew.py
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import product

import numpy as np

from simulator.routing import Setting, apply_policy, contiguous, moves, policy_names, read_table, resample
from simulator.routing.error import RoutingError
from simulator.routing.imitation import imitate
from simulator.routing.policies.eplb import plan
from simulator.routing.rows import rows_per_expert, source_rows
from simulator.routing.table import RoutingTable, max_over_mean

DEGREES = (8, 16, 32, 64, 128)
SEEDS = range(8)
LAYERS, EXPERTS, TOP_K, EP, TOKENS = 92, 896, 16, 64, 8192
"""Kimi K3.1 as its scenarios place it: one sequence of 8192 tokens a rank."""
EXPERT_BYTES = 3 * 3584 * 3072 * 2
"""Weights of one of its experts in bf16."""
HIDDEN, WIDTH, PICKS, RANK_TOKENS = 7168, 2048, 8, 4096
"""Of the measured cases: a DeepSeek-V3 layer."""


def main() -> None:
    """Read the traces and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--cases", metavar="RANKS", help="cases of the first trace to measure, as JSON; 1: of one rank")
    asked = parser.parse_args()
    try:
        tables = [read_table(trace) for trace in asked.traces]
        found = every_case(tables[0], asked.cases) if asked.cases else []
    except (RoutingError, ValueError) as error:
        parser.error(str(error))
    if asked.cases:
        print("[\n" + ",\n".join(f" {json.dumps(case)}" for case in found) + "\n]")
        return
    skew(tables)
    for ranks in (32, 72, 144):
        balanced(tables, ranks)
    imitated(tables)
    policies(tables)


def every_case(trace: RoutingTable, ranks: str) -> list[dict[str, object]]:
    """Cases for each number of *ranks*, which commas part. Raise :exc:`ValueError` for what is no such number."""
    table = resample(trace, 58, 256, PICKS, np.random.default_rng(0))
    return [case for number in ranks.split(",") for case in cases(table, int(number))]


def skew(tables: list[RoutingTable]) -> None:
    """What a table says of itself."""
    print("\ntrace | expert max/mean [min-max] | gini | zipf | top 20 % |", *(f"EP{ep} [min-max] |" for ep in DEGREES))
    for table in tables:
        ranks = [
            max_over_mean(table.rank_load(ep)) if table.experts % ep == 0 else np.array([np.nan]) for ep in DEGREES
        ]
        figures = [
            spread(table.expert_max_over_mean()),
            f"{table.gini().mean():.2f}",
            f"{table.zipf_exponent().mean():.2f}",
        ]
        print(table.name, *figures, f"{table.top_share().mean():.2f}", *map(spread, ranks), sep=" | ")


def balanced(tables: list[RoutingTable], ranks: int) -> None:
    """EPLB with 288 slots, planned on the row and run on the column."""
    fitting = [table for table in tables if table.experts == 256]
    print(f"\nEPLB, 288 slots on {ranks} ranks: plan \\ run |", *(f"{table.name} |" for table in fitting))
    for planned in fitting:
        placement = plan(planned, 288, ranks)
        found = [max_over_mean(placement.rank_load(table)).mean() for table in fitting]
        print(planned.name, *(f"{value:.3f}" for value in found), sep=" | ")


def imitated(tables: list[RoutingTable]) -> None:
    """Kolmogorov-Smirnov distance of per-layer rank max/mean, real against synthetic, and the change of the mean."""
    print("\nimitation: KS, mean change |", *(f"EP{ep} |" for ep in DEGREES))
    for table in tables:
        made = [imitate(table, table.layers, table.experts, 1, np.random.default_rng(seed)) for seed in SEEDS]
        cells = []
        for ep in DEGREES:
            if table.experts % ep == 0:
                real = max_over_mean(table.rank_load(ep))
                loads = [max_over_mean(copy.rank_load(ep)) for copy in made]
                distance = np.mean([kolmogorov_smirnov(real, load) for load in loads])
                cells.append(f"{distance:.2f}, {100 * (np.mean(loads) / real.mean() - 1):+.0f} %")
        print(table.name, *cells, sep=" | ")


def policies(tables: list[RoutingTable]) -> None:
    """Each policy on each table carried to Kimi K3.1, planned on the same table and on the next one."""
    big = [resample(table, LAYERS, EXPERTS, TOP_K, np.random.default_rng(0)) for table in tables]
    lengths = np.random.default_rng(0).integers(TOKENS // 4, 2 * TOKENS - TOKENS // 4, 4 * EP)
    print("\npolicy | trace | rank max/mean fresh | stale | rows at the busiest rank | dropped | experts moved, GB")
    for name, (at, table) in product(policy_names(), enumerate(big)):
        mixed = name in ("data_sampling", "micro_batch_scheduling")
        setting = Setting(EP, TOP_K, TOKENS, micro_batches=4)
        if mixed:
            setting = replace(setting, sequence_tokens=lengths, domains=6, spread=0.93)
        fresh = apply_policy(name, table, table, setting)
        other = big[(at + 1) % len(big)]
        stale = apply_policy(name, other, table, setting)
        moved = moves(contiguous(table.layers, EXPERTS, EP), fresh.placement, setting.ranks_per_node).total
        print(
            f"{name} | {table.name} | {fresh.rank_max_over_mean:.3f} | {stale.rank_max_over_mean:.3f} | "
            f"{fresh.hottest_rows} | {100 * fresh.dropped_share:.1f} % | {moved}, {moved * EXPERT_BYTES / 1e9:.0f}"
        )


def cases(table: RoutingTable, ranks: int) -> list[dict[str, object]]:
    """Layers of *table* by their skew, as *ranks* ranks see them, and exchanges most of which go to the first rank."""
    if ranks == 1:
        return cases_of_one(table)
    found: list[dict[str, object]] = []
    for tag, layer in picked(table, ranks, {"least": 0.0, "median": 0.5, "worst": 1.0}).items():
        name, rows = f"{table.name}-ep{ranks}-{tag}", rows_per_expert(table, layer, ranks * RANK_TOKENS, PICKS)
        by_pair = source_rows(rows, ranks).reshape(ranks, ranks, -1).sum(axis=2)
        found.append(exchange_case(f"{name}-exchange", by_pair.tolist()))
        found.append(product_case(f"{name}-products", rows.reshape(ranks, -1).tolist()))
    for share in sorted({1 / ranks, 0.5, 0.75, 0.9}):
        other = round((1 - share) * RANK_TOKENS * PICKS / (ranks - 1))
        sent = [RANK_TOKENS * PICKS - (ranks - 1) * other, *[other] * (ranks - 1)]
        found.append(exchange_case(f"ep{ranks}-{share:g}-exchange", [sent] * ranks))
    found.append(product_case(f"ep{ranks}-even-products", even_rows(table, ranks).tolist()))
    return found


def cases_of_one(table: RoutingTable) -> list[dict[str, object]]:
    """Products of single ranks among more than a node has."""
    found = []
    for ep in (32, 64):
        for tag, layer in picked(table, ep, {"median": 0.5, "worst": 1.0}).items():
            rows = rows_per_expert(table, layer, RANK_TOKENS * ep, PICKS).reshape(ep, -1)
            order = np.argsort(rows.sum(axis=1))
            for rank, at in (("busiest", -1), ("middle", ep // 2), ("idlest", 0)):
                found.append(product_case(f"ep{ep}-{tag}-{rank}", rows[order[at]].tolist()))
        found.append(product_case(f"ep{ep}-even", even_rows(table, ep)[0].tolist()))
    return found


def even_rows(table: RoutingTable, ranks: int) -> np.ndarray:
    """Rows [ranks, experts of a rank] where all experts are liked alike."""
    return np.full((ranks, table.experts // ranks), RANK_TOKENS * PICKS * ranks // table.experts)


def picked(table: RoutingTable, ranks: int, quantiles: dict[str, float]) -> dict[str, int]:
    """The layer at each quantile of rank max/mean."""
    order = np.argsort(max_over_mean(table.rank_load(ranks)), kind="stable")
    return {tag: int(order[round(at * (order.size - 1))]) for tag, at in quantiles.items()}


def exchange_case(name: str, rows: list[list[int]]) -> dict[str, object]:
    """Rows of bf16 from each rank to each."""
    return {"id": name, "kind": "all_to_all", "row_bytes": 2 * HIDDEN, "rows": rows}


def product_case(name: str, rows: list[int] | list[list[int]]) -> dict[str, object]:
    """Gate and up projection of the experts of a rank, or of each."""
    return {"id": name, "kind": "grouped_gemm", "inner": HIDDEN, "out": 2 * WIDTH, "rows": rows}


def spread(values: np.ndarray) -> str:
    """Mean, smallest and largest."""
    return "-" if np.isnan(values).any() else f"{values.mean():.2f} [{values.min():.1f}-{values.max():.1f}]"


def kolmogorov_smirnov(first: np.ndarray, second: np.ndarray) -> float:
    """The largest distance between the two samples' distribution functions."""
    at = np.concatenate([first, second])
    below = [np.searchsorted(np.sort(sample), at, side="right") / sample.size for sample in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


if __name__ == "__main__":
    main()
