"""A trace in figures: what ``rackcast trace`` says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from simulator.documents import Problem
from simulator.routing.error import RoutingError
from simulator.routing.placement import contiguous
from simulator.routing.statistics import drift, fan_out, sampled, togetherness
from simulator.routing.table import RoutingTable, max_over_mean
from simulator.routing.trace import Trace
from simulator.routing.windows import windows

RANKS_PER_NODE = 8
"""Of the nodes that a token's copies are counted for."""


def usual_ep(table: RoutingTable) -> int:
    """A degree of expert parallelism for who names none: one node's ranks, or as many as divide the experts."""
    return max(ranks for ranks in range(1, RANKS_PER_NODE + 1) if table.experts % ranks == 0)


def trace_summary(trace: Trace, ep: int) -> dict[str, Any]:
    """Skew over all of *trace* and by layer, with experts placed contiguously on *ep* ranks; what is not known is null.

    ``expert_max_over_mean`` and its like are means over layers. Raise :exc:`RoutingError` when *ep* does not divide.
    """
    table = trace.table
    rank_load = _rank_load(table, ep)
    by_layer = {
        "assignments": table.counts.sum(axis=1),
        "expert_max_over_mean": table.expert_max_over_mean(),
        "rank_max_over_mean": max_over_mean(rank_load),
        "gini": table.gini(),
        "zipf_exponent": table.zipf_exponent(),
        "entropy_bits": table.entropy_bits(),
        "top_20_percent_share": table.top_share(),
        "hottest_expert": table.counts.argmax(axis=1),
        "hottest_rank": rank_load.argmax(axis=1),
    }
    over_all = (
        "expert_max_over_mean",
        "rank_max_over_mean",
        "gini",
        "zipf_exponent",
        "entropy_bits",
        "top_20_percent_share",
    )
    numbers = table.recorded_layers or range(table.layers)
    return {
        "trace": trace.name,
        "source": trace.source,
        "layers": table.layers,
        "experts": table.experts,
        "ep": ep,
        "top_k": None if trace.picks is None else int((trace.picks >= 0).sum(axis=2).max()),
        **{name: float(by_layer[name].mean()) for name in over_all},
        "worst_layer": int(numbers[int(by_layer["rank_max_over_mean"].argmax())]),
        "windows": len(trace.first_steps),
        "steps_per_window": trace.window_steps,
        "source_ranks": len(trace.sources),
        "source_max_over_mean": float(trace.source_share.max() * len(trace.sources)),
        "drift": _drift(trace),
        "togetherness": _mean(togetherness(trace)),
        "ranks_per_token": _fan_out(trace, ep, 1),
        "nodes_per_token": _fan_out(trace, ep, RANKS_PER_NODE),
        "per_layer": [
            {"layer": int(number), **{name: values[row].item() for name, values in by_layer.items()}}
            for row, number in enumerate(numbers)
        ],
        "per_window": _per_window(trace, ep),
    }


def _per_window(trace: Trace, ep: int) -> list[dict[str, float | int]]:
    """What moves from window to window; empty where there is one."""
    if len(trace.first_steps) < 2:
        return []
    found = windows(trace, ep)
    names = ("rank_max_over_mean", "expert_max_over_mean", "hottest_rank")
    return [
        {"first_step": step, **{name: getattr(found, name)[row].item() for name in names}}
        for row, step in enumerate(found.first_steps)
    ]


def _rank_load(table: RoutingTable, ep: int) -> np.ndarray:
    try:
        return table.rank_load(ep)
    except ValueError as error:
        raise RoutingError([Problem("--ep", None, "", str(error))]) from None


def _drift(trace: Trace) -> dict[str, float | None] | None:
    found = drift(trace)
    if found is None:
        return None
    names = ("next_window", "first_to_last", "by_chance")
    return {name: _mean(getattr(found, name)) for name in names}


def _fan_out(trace: Trace, ep: int, ranks_per_node: int) -> float | None:
    if trace.picks is None:
        return None
    placement = contiguous(len(trace.layers), trace.counts.shape[3], ep)
    return float(fan_out(sampled(trace), trace.layers, placement, ranks_per_node).nodes_per_token.mean())


def _mean(values: np.ndarray | None) -> float | None:
    if values is None or np.isnan(values).all():
        return None
    mean = float(np.nanmean(values))
    return mean if math.isfinite(mean) else None
