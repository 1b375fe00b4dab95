"""What a balancing policy is given beside routing tables, and what it gives back.

One expert-parallel group is meant: its ranks bring tokens, dispatch them and compute the rows that arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simulator.routing.placement import Placement
from simulator.routing.rows import rows_per_expert
from simulator.routing.table import FloatArray, IntArray, RoutingTable


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """The group of ranks and the batch."""

    ep: int
    """Ranks of the expert-parallel group."""
    top_k: int
    tokens: int
    """Tokens that a rank brings to one micro-batch, where sequences are not told apart."""
    ranks_per_node: int = 8
    micro_batches: int = 1
    seed: int = 0
    sequence_tokens: IntArray | None = None
    """Tokens of each sequence of the step, [sequences], in the order of arrival, instead of *tokens*."""
    image_patches: IntArray | None = None
    """Patches of each of these sequences' images, [sequences]: work of the vision tower."""

    def __post_init__(self) -> None:
        small = [
            f"{name} is {value}, expected at least 1"
            for name in ("ep", "top_k", "tokens", "ranks_per_node", "micro_batches")
            if (value := getattr(self, name)) < 1
        ]
        if small:
            raise ValueError("; ".join(small))

    @property
    def source_tokens(self) -> IntArray:
        """Tokens that each rank brings to each micro-batch, [micro-batches, ranks], sequences dealt as they come."""
        if self.sequence_tokens is None:
            return np.full((self.micro_batches, self.ep), self.tokens)
        return self.deal(np.arange(self.sequence_tokens.size) % (self.micro_batches * self.ep), self.sequence_tokens)

    def deal(self, place: IntArray, amount: IntArray) -> IntArray:
        """Sum *amount* of each sequence at its *place*, micro-batch * ep + rank: [micro-batches, ranks]."""
        total = np.bincount(place, weights=amount, minlength=self.micro_batches * self.ep)
        return np.asarray(total.astype(np.int64).reshape(self.micro_batches, self.ep))


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Rows by micro-batch, layer, rank and slot, and what else a step needs to know."""

    placement: Placement
    rows: IntArray
    """Rows that each slot computes, [micro-batches, layers, ranks, slots]."""
    source_tokens: IntArray
    """Tokens that each rank brings, [micro-batches, ranks]."""
    source_patches: IntArray | None = None
    """Patches of the images that each rank encodes, [micro-batches, ranks]."""
    dropped_rows: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Rows that were not computed at all, [layers]; empty where nothing is ever dropped."""
    padded: bool = False
    """Whether every slot computes as many rows from every rank, zeros among them."""
    zero_rows: int = 0
    """Rows of zeros, of all."""
    nodes_per_token: float | None = None
    """Mean number of nodes that hold a token's experts, where the policy bounds it."""

    @property
    def rank_rows(self) -> IntArray:
        """Rows of each rank, [micro-batches, layers, ranks]."""
        return np.asarray(self.rows.sum(axis=3))

    @property
    def dropped_share(self) -> float:
        """Rows that were dropped, of all that were routed."""
        dropped = int(self.dropped_rows.sum())
        return dropped / (dropped + int(self.rows.sum()) - self.zero_rows)

    @property
    def rank_max_over_mean(self) -> float:
        """Rows of the busiest rank over the mean, weighted by rows: the factor by which experts' time grows."""
        rank = self.rank_rows
        return float(rank.max(axis=2).sum() / rank.mean(axis=2).sum())

    @property
    def hottest_rows(self) -> int:
        """The most rows that any rank receives in one layer of one micro-batch: what its buffers must hold."""
        return int(self.rank_rows.max())


def placed(placement: Placement, table: RoutingTable, setting: Setting) -> Outcome:
    """The outcome of *placement* alone: all of *table*'s rows, sequences dealt as they come."""
    source = setting.source_tokens
    by_total = {total: placement.rows(table_rows(table, total, setting.top_k)) for total in set(_totals(source))}
    return Outcome(placement, np.stack([by_total[total] for total in _totals(source)]), source)


def table_rows(table: RoutingTable, tokens: int, top_k: int) -> IntArray:
    """Whole rows of each expert, [layers, experts], when *tokens* tokens pass every layer of *table*."""
    return np.stack([rows_per_expert(table, layer, tokens, top_k) for layer in range(table.layers)])


def reweighted(table: RoutingTable, factor: FloatArray, how: str) -> RoutingTable:
    """*table* with its counts times *factor* [layers, experts], every layer's sum kept; *how* joins its name."""
    counts = table.counts * factor
    counts *= table.counts.sum(axis=1, keepdims=True) / counts.sum(axis=1, keepdims=True)
    return RoutingTable(counts, f"{table.name}, {how}", table.source, table.recorded_layers)


def _totals(source: IntArray) -> list[int]:
    return [int(total) for total in source.sum(axis=1)]
