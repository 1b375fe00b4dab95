"""Copies of hot experts, packed so that ranks are even: the balancer that DeepSeek published as EPLB.

Two greedy steps. Spare slots go, one by one, to the expert with the highest load per copy. Copies, heaviest first, then
go to the rank that is loaded least and still has a free slot. Hierarchical: the groups of experts that routing is
limited to are first packed to nodes the same way, and each node then copies and packs for itself, so that a token's
experts stay on few nodes. Method: github.com/deepseek-ai/EPLB and section 3.4.1 of arXiv 2412.19437.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.routing.outcome import Outcome, Setting, placed
from simulator.routing.placement import Placement
from simulator.routing.table import FloatArray, IntArray, RoutingTable

PLANS = True


@dataclass(frozen=True, slots=True)
class Options:
    """How many copies, and whether groups stay on nodes."""

    redundant_experts: int | None = None
    """Slots beyond one per expert, over all ranks together; None gives each rank one more than it needs."""
    groups: int | None = None
    """Groups of neighbouring experts that stay on one node each; None packs globally."""


def apply(planned: RoutingTable, replayed: RoutingTable, setting: Setting, options: Options) -> Outcome:
    """Plan on *planned*. Raise :exc:`ValueError` where slots, groups, nodes and ranks do not divide."""
    spare = options.redundant_experts
    slots = setting.ep * (-(-planned.experts // setting.ep) + 1) if spare is None else planned.experts + spare
    nodes = max(1, setting.ep // setting.ranks_per_node) if options.groups else 1
    return placed(plan(planned, slots, setting.ep, options.groups or 1, nodes), replayed, setting)


def plan(table: RoutingTable, slots: int, ranks: int, groups: int = 1, nodes: int = 1) -> Placement:
    """Place *slots* copies of *table*'s experts on *ranks* ranks; with one group and node, globally."""
    _check(table.experts, slots, ranks, groups, nodes)
    return Placement(np.stack([_plan_layer(load, slots, ranks, groups, nodes) for load in table.counts]), table.experts)


def _check(experts: int, slots: int, ranks: int, groups: int, nodes: int) -> None:
    wrong = [
        f"{name} {many} do not divide over {other} {few}"
        for name, many, other, few in (
            ("slots", slots, "ranks", ranks),
            ("experts", experts, "groups", groups),
            ("groups", groups, "nodes", nodes),
            ("ranks", ranks, "nodes", nodes),
        )
        if few < 1 or many % few
    ]
    if slots < experts:
        wrong.append(f"{slots} slots do not hold {experts} experts")
    if wrong:
        raise ValueError("; ".join(wrong))


def _plan_layer(load: FloatArray, slots: int, ranks: int, groups: int, nodes: int) -> IntArray:
    """The expert of each slot, [ranks, slots of a rank]."""
    group_experts = np.arange(load.size).reshape(groups, -1)
    placed_slots = []
    for members in _pack(load[group_experts].sum(axis=1), nodes):
        experts = group_experts[members].ravel()
        copied = _replicate(load[experts], slots // nodes)
        copies = np.bincount(copied)
        bins = _pack((load[experts] / copies)[copied], ranks // nodes)
        placed_slots += [experts[copied[bin_]] for bin_ in bins]
    return np.array(placed_slots)


def _replicate(load: FloatArray, slots: int) -> IntArray:
    """The expert, as an index into *load*, that each of *slots* slots is a copy of."""
    copied = list(range(load.size))
    copies = np.ones(load.size)
    for _ in range(slots - load.size):
        hottest = int((load / copies).argmax())
        copied.append(hottest)
        copies[hottest] += 1
    return np.array(copied)


def _pack(weight: FloatArray, bins: int) -> list[list[int]]:
    """Distribute items to *bins*, equally many each: heaviest first, to the lightest bin with room."""
    room = weight.size // bins
    if room == 1:
        return [[item] for item in range(bins)]
    packed: list[list[int]] = [[] for _ in range(bins)]
    total = np.zeros(bins)
    for item in np.argsort(-weight, kind="stable"):
        lightest = int(total.argmin())
        packed[lightest].append(int(item))
        total[lightest] += weight[item]
        if len(packed[lightest]) == room:
            total[lightest] = np.inf
    return packed
