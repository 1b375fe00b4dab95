"""What a balancing policy is given beside routing tables, and what it gives back.

One expert-parallel group is meant: its ranks bring tokens, dispatch them and compute the rows that arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simulator.routing.placement import Placement
from simulator.routing.rows import rows_per_expert
from simulator.routing.sequences import domain_shares
from simulator.routing.table import FloatArray, IntArray, RoutingTable

Lengths = tuple[tuple[int, ...], ...]
"""Tokens of each sequence of each rank in one micro-batch."""


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
    domains: int = 1
    """Kinds of sequences, each of which routes in its own way."""
    spread: float = 0.0
    """Standard deviation of an expert's log popularity between domains."""

    def __post_init__(self) -> None:
        small = [
            f"{name} is {value}, expected at least 1"
            for name in ("ep", "top_k", "tokens", "ranks_per_node", "micro_batches", "domains")
            if (value := getattr(self, name)) < 1
        ]
        if small:
            raise ValueError("; ".join(small))

    @property
    def told_apart(self) -> IntArray:
        """Tokens of each sequence. Raise :exc:`ValueError` where sequences are not told apart."""
        if self.sequence_tokens is None:
            raise ValueError("needs the tokens of each sequence, but sequences are not told apart")
        return self.sequence_tokens

    @property
    def domain(self) -> IntArray:
        """The domain of each sequence, [sequences]: any of them, as the seed has it."""
        return np.random.default_rng([self.seed, 1]).integers(self.domains, size=self.told_apart.size)

    def shares(self, table: RoutingTable) -> FloatArray:
        """The popularity of each domain around *table*, [domains, layers, experts]."""
        tokens = np.bincount(self.domain, weights=self.told_apart, minlength=self.domains).astype(float)
        return domain_shares(table, tokens, self.spread, np.random.default_rng([self.seed, 2]))

    @property
    def arrival(self) -> IntArray:
        """Where sequences go that are dealt as they come, [sequences]: to micro-batch * ep + rank."""
        count = 0 if self.sequence_tokens is None else self.sequence_tokens.size
        return np.arange(count) % (self.micro_batches * self.ep)

    def deal(self, place: IntArray, amount: IntArray) -> IntArray:
        """Sum *amount* of each sequence at its *place*, micro-batch * ep + rank: [micro-batches, ranks]."""
        total = np.bincount(place, weights=amount, minlength=self.micro_batches * self.ep)
        return np.asarray(total.astype(np.int64).reshape(self.micro_batches, self.ep))

    def lengths(self, place: IntArray) -> tuple[Lengths, ...]:
        """Tokens of the sequences at each *place*, for each micro-batch; none where sequences are not told apart."""
        if self.sequence_tokens is None:
            return ()
        cells: list[list[int]] = [[] for _ in range(self.micro_batches * self.ep)]
        for at, tokens in zip(place.tolist(), self.sequence_tokens.tolist(), strict=True):
            cells[at].append(tokens)
        dealt = [tuple(cell) for cell in cells]
        return tuple(tuple(dealt[first : first + self.ep]) for first in range(0, len(dealt), self.ep))


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
    lengths: tuple[Lengths, ...] = ()
    """Tokens of every sequence of each rank, by micro-batch; empty where sequences are not told apart."""
    before: Placement | None = None
    """Where experts were a step earlier, where a policy plans anew from time to time."""
    dropped_rows: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Rows that were not computed at all, [layers]; empty where nothing is ever dropped."""
    padded: bool = False
    """Whether every slot computes as many rows from every rank, zeros among them."""
    zero_rows: int = 0
    """Rows of zeros, of all."""
    destinations: IntArray | None = None
    """Rank of each expert of single tokens, [layers, tokens, top_k], -1 for none; None where only popularity is known,
    or a policy changed what tokens choose."""
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
    return composed(placement, table, setting, setting.arrival)


def composed(placement: Placement, table: RoutingTable, setting: Setting, place: IntArray) -> Outcome:
    """The outcome of *placement* when each sequence goes to its *place*, micro-batch * ep + rank."""
    if setting.sequence_tokens is None:
        source = np.full((setting.micro_batches, setting.ep), setting.tokens)
    else:
        source = setting.deal(place, setting.sequence_tokens)
    mixes = _mixes(table, setting, place)
    known: dict[tuple[int, int], IntArray] = {}
    rows = []
    for mix, total in zip(mixes, source.sum(axis=1).tolist(), strict=True):
        if (id(mix), total) not in known:
            known[id(mix), total] = placement.rows(table_rows(mix, total, setting.top_k))
        rows.append(known[id(mix), total])
    patches = setting.image_patches
    together = table.picks is not None and all(mix is table for mix in mixes)
    return Outcome(
        placement,
        np.stack(rows),
        source,
        None if patches is None else setting.deal(place, patches),
        setting.lengths(place),
        destinations=placement.ranks_of(table.picks) if together and table.picks is not None else None,
    )


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """The micro-batches of all *outcomes*, which have one placement, one after the other."""
    first = outcomes[0]
    if len(outcomes) == 1:
        return first
    return replace(
        first,
        rows=np.concatenate([one.rows for one in outcomes]),
        source_tokens=np.concatenate([one.source_tokens for one in outcomes]),
        lengths=tuple(batch for one in outcomes for batch in one.lengths),
        destinations=None,
        dropped_rows=np.sum([one.dropped_rows for one in outcomes], axis=0),
        zero_rows=sum(one.zero_rows for one in outcomes),
    )


def _mixes(table: RoutingTable, setting: Setting, place: IntArray) -> list[RoutingTable]:
    """What each micro-batch routes to: a table for each."""
    if setting.domains == 1 or not setting.spread:
        return [table] * setting.micro_batches
    at = place // setting.ep * setting.domains + setting.domain
    many = setting.micro_batches * setting.domains
    tokens = np.bincount(at, weights=setting.told_apart, minlength=many).reshape(setting.micro_batches, -1)
    shares = setting.shares(table)
    return [RoutingTable(np.einsum("d,dle->le", mix, shares), table.name, table.source) for mix in tokens]


def table_rows(table: RoutingTable, tokens: int, top_k: int) -> IntArray:
    """Whole rows of each expert, [layers, experts], when *tokens* tokens pass every layer of *table*."""
    return np.stack([rows_per_expert(table, layer, tokens, top_k) for layer in range(table.layers)])


def reweighted(table: RoutingTable, factor: FloatArray, how: str) -> RoutingTable:
    """*table* with its counts times *factor* [layers, experts], every layer's sum kept; *how* joins its name."""
    counts = table.counts * factor
    counts *= table.counts.sum(axis=1, keepdims=True) / counts.sum(axis=1, keepdims=True)
    return RoutingTable(counts, f"{table.name}, {how}", table.source, table.recorded_layers)
