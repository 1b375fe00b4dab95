"""Which rank holds which expert, with copies of the hot ones, and what a change of that costs.

A rank has as many slots as every other; a slot holds one expert. The rows of an expert with several copies are split
over them evenly, as routers that pick a copy by token index do. Where a router prefers the copy on its own node, ranks
are loaded less evenly and the fabric less than counted here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.routing.table import FloatArray, IntArray, RoutingTable, nearest_divisors


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The expert in each slot, [layers, ranks, slots of a rank]; every expert has a slot in every layer."""

    slots: IntArray
    experts: int

    def __post_init__(self) -> None:
        if self.slots.ndim != 3:
            raise ValueError(f"slots have shape {self.slots.shape}, expected (layers, ranks, slots of a rank)")
        missing = np.argwhere(self.replicas == 0)
        if missing.size:
            layer, expert = missing[0]
            raise ValueError(f"{len(missing)} experts have no slot, the first is expert {expert} of layer {layer}")

    @property
    def ranks(self) -> int:
        """Ranks of the expert-parallel group."""
        return int(self.slots.shape[1])

    @property
    def replicas(self) -> IntArray:
        """Copies of each expert, [layers, experts]."""
        layers = len(self.slots)
        flat = self.slots.reshape(layers, -1) + self.experts * np.arange(layers)[:, None]
        return np.bincount(flat.ravel(), minlength=layers * self.experts).reshape(layers, self.experts)

    def rank_load(self, table: RoutingTable) -> FloatArray:
        """Assignments of *table* that each rank receives, [layers, ranks]."""
        share = table.counts / self.replicas
        return np.asarray(np.take_along_axis(share[:, None, :], self.slots, axis=2).sum(axis=2))

    def rows(self, rows: IntArray) -> IntArray:
        """Split *rows* [layers, experts] over the copies: [layers, ranks, slots]; lower slots take the odd ones."""
        layers, ranks, width = self.slots.shape
        flat = self.slots.reshape(layers, -1)
        even, odd = np.divmod(rows, self.replicas)
        turn = _turns(flat)
        split = np.take_along_axis(even, flat, axis=1) + (turn < np.take_along_axis(odd, flat, axis=1))
        return np.asarray(split.reshape(layers, ranks, width))

    def ranks_of(self, picks: IntArray) -> IntArray:
        """The rank of each of *picks* [layers, tokens, top_k], -1 for none; tokens take the copies of an expert in
        turn.
        """
        found = np.full(picks.shape, -1, dtype=np.int64)
        for layer, (chosen, copies) in enumerate(zip(picks, self.replicas, strict=True)):
            order = np.argsort(self.slots[layer].ravel(), kind="stable")
            first = np.cumsum(copies) - copies
            turn = np.arange(len(chosen))[:, None] % copies[chosen]
            rank = order[first[chosen] + turn] // self.slots.shape[2]
            found[layer] = np.where(chosen >= 0, rank, -1)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Experts that ranks must fetch to go from one placement to another, [layers, ranks]."""

    within_node: IntArray
    """A rank of the same node held the expert before."""
    across_nodes: IntArray

    @property
    def total(self) -> int:
        """Experts fetched in all; times the bytes of an expert it is what the fabrics carry."""
        return int(self.within_node.sum() + self.across_nodes.sum())


def contiguous(layers: int, experts: int, ranks: int) -> Placement:
    """Rank r holds the experts from r * experts / ranks on. Raise :exc:`ValueError` when that is not whole."""
    if ranks < 1 or experts % ranks:
        hint = nearest_divisors(ranks, experts)
        raise ValueError(f"ep is {ranks}, but it must divide the {experts} experts: {hint}")
    slots = np.broadcast_to(np.arange(experts).reshape(1, ranks, -1), (layers, ranks, experts // ranks))
    return Placement(slots, experts)


def moves(old: Placement, new: Placement, ranks_per_node: int) -> Moves:
    """What each rank lacks of *new* when it holds *old*; node n holds the ranks from n * *ranks_per_node* on."""
    shape, experts = new.slots.shape[:2], new.experts
    held = _held(new)
    missing = held[np.isin(held, _held(old), assume_unique=True, invert=True, kind="sort")]
    holder, expert = np.divmod(missing, experts)
    node = holder - holder % new.ranks % ranks_per_node
    near = np.isin(node * experts + expert, _held(old, ranks_per_node), kind="sort")
    within, across = (np.bincount(holder[which], minlength=shape[0] * shape[1]) for which in (near, ~near))
    return Moves(within.reshape(shape), across.reshape(shape))


def _held(placement: Placement, together: int = 1) -> IntArray:
    """What so many ranks *together* hold, once each: (layer * ranks + first of these ranks) * experts + expert."""
    layers, ranks, _ = placement.slots.shape
    first = np.arange(ranks) // together * together
    holder = np.arange(layers)[:, None] * ranks + first
    held = np.sort(holder[:, :, None] * placement.experts + placement.slots, axis=None)
    return held[np.diff(held, prepend=-1) > 0]


def _turns(flat: IntArray) -> IntArray:
    """How many slots before this one hold the same expert, [layers, slots]."""
    order = np.argsort(flat, axis=1, kind="stable")
    ordered = np.take_along_axis(flat, order, axis=1)
    at = np.broadcast_to(np.arange(flat.shape[1]), flat.shape)
    fresh = np.ones(flat.shape, dtype=bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.maximum.accumulate(np.where(fresh, at, 0), axis=1)
    turn = np.empty_like(flat)
    np.put_along_axis(turn, order, at - first, axis=1)
    return turn
