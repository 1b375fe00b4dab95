"""What a micro-batch of a split costs on each virtual stage at least, for very many splits: a few shapes tell of all.

Operators are listed for every tensor-parallel degree, on whole sequences and on cut ones, and priced in proportion to
their work (:mod:`.least_costs`): a share of the sequences, or a smaller piece of each, takes that share of the time and
memory, or more. Routed rows are taken to be spread evenly, since the slowest rank has no fewer than the mean one. Left
out are images, waits for numbers of rows, and exchanges that send a token once for several experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from simulator.model.architecture import Layer, MixtureOfExperts
from simulator.parallel.mesh import Mesh
from simulator.planner.exchange import Exchange
from simulator.planner.expert_rows import EvenRows, rows_kept
from simulator.planner.least_costs import LeastPricing
from simulator.planner.passes import Passes
from simulator.planner.places import places
from simulator.planner.routed_prices import RoutedPrices
from simulator.planner.splits import SEQUENCES_AT_ONCE, WAYS, Column, Splits
from simulator.planner.stages import Edges, StageSums, Values, over_stages, stage_sums
from simulator.planner.token_prices import Ends, TokenPrices
from simulator.program.job import Job

Key = tuple[int, ...]
_PLAIN, _ONCE = WAYS.index("all_to_all"), WAYS.index("deduplicated")


class LeastPrices:
    """For splits of *job*'s model with at most so many *sequences* in a micro-batch.

    Operators are listed for as many: fewer move the same weights.
    """

    def __init__(self, job: Job, sequences: int = max(SEQUENCES_AT_ONCE)) -> None:
        self._job, self._sequences = job, sequences
        few = _with_few_makes(job)
        self._growing, self._starting = _Lanes(few, sequences, grows=True), _Lanes(few, 1, grows=False)
        self._choices = np.zeros(len(places(job.architecture)))
        for number, place in enumerate(places(job.architecture)):
            parts = [layer.feed_forward for layer in place.layers]
            self._choices[number] = max((one.top_k for one in parts if isinstance(one, MixtureOfExperts)), default=0)
        self._experts = job.routing.placement.experts if job.routing is not None else 0
        self._busy_s = cache(self._busy)

    def alike(self, splits: Splits) -> Splits:
        """*splits* with one way of exchange for all that send a token once for several experts."""
        return splits.where(splits["exchange"] != _PLAIN, exchange=_ONCE)

    def tokens(self, splits: Splits, edges: Edges) -> StageSums:
        """What runs over a rank's own tokens."""
        keys, which = _listed(splits, "tp", "cp", "recompute")
        return self._both(keys, which, self._share(splits), lambda lanes, key: lanes.tokens(edges, *key))

    def routed(self, splits: Splits, edges: Edges) -> StageSums:
        """What runs over routed rows, but exchanges."""
        keys, which = _listed(splits, "tp", "cp", "recompute", "ep")
        return self._both(keys, which, self._share(splits), lambda lanes, key: lanes.routed(edges, *key))

    def _both(self, keys: list[Key], which: Column, share: Values, of: Callable[[_Lanes, Key], StageSums]) -> StageSums:
        """What grows, for the *share* of each split, and what does not."""
        growing, starting = (
            StageSums.joined(of(lanes, key) for key in keys)[which] for lanes in (self._growing, self._starting)
        )
        return growing.times(share).longer_by(starting)

    def exchanges(self, splits: Splits, edges: Edges) -> Values:
        """Seconds of exchanges forward, backward and where they run again, then of all on each level's busiest port,
        [splits, 3 + levels, stages].
        """
        keys, which = _listed(splits, "tp", "cp", "recompute", "ep")
        sent = np.stack([over_stages(self._sent_bytes(edges, *key), edges) for key in keys])[which]
        sent *= self._share(splits)[:, None, None]
        groups, group = splits.numbered("ep", "etp", "exchange")
        busy_s = np.stack([self._busy_s(*key) for key in groups])[group][:, :, None]
        return np.concatenate([sent * busy_s.max(axis=1)[:, None], sent.sum(axis=1)[:, None] * busy_s], axis=1)

    def told(self, splits: Splits, edges: Edges) -> Values:
        """Nothing, [splits, 3, stages]."""
        return np.zeros((len(splits), 3, len(edges) - 1))

    def late(self, splits: Splits, edges: Edges) -> Values:
        """Nothing, [splits, 4, stages]."""
        return np.zeros((len(splits), 4, len(edges) - 1))

    def slots(self, splits: Splits) -> Column:
        """Experts that a rank holds without copies."""
        return np.asarray(self._experts // splits["ep"])

    def exchange_bytes(self, splits: Splits) -> Values:
        """Nothing."""
        return np.zeros(len(splits))

    def add_ends(self, splits: Splits, forward: Values, backward: Values) -> None:
        """Add the embedding on the first stage, and the loss on the last."""
        keys, which = _listed(splits, "tp", "cp")
        share = self._share(splits)[:, None]
        for lanes, times in ((self._growing, share), (self._starting, np.ones_like(share))):
            ends = [lanes.ends(*key) for key in keys]
            for passes, direction in ((forward, 0), (backward, 1)):
                passes[:, :, 0] += np.stack([end.embedding[direction] for end in ends])[which] * times
                passes[:, :, -1] += np.stack([end.loss[direction] for end in ends])[which] * times

    def _share(self, splits: Splits) -> Values:
        """Of the tokens that operators are listed for, those of a rank."""
        distinct, which = np.unique(splits["cp"], return_inverse=True)
        return np.asarray(splits["micro_batch_sequences"] / self._sequences * (_pieces(distinct) / distinct)[which])

    def _sent_bytes(self, edges: Edges, tp: int, cp: int, recompute: int, ep: int) -> Values:
        """Bytes that a rank sends to experts in all exchanges of each layer, [3, layers]."""
        row_bytes, tokens = self._growing.row_bytes(edges, tp, cp, recompute, ep), self._growing.sent_tokens(tp, cp)
        return row_bytes * self._choices * tokens * rows_kept(self._job)

    def _busy(self, ep: int, etp: int, way: int) -> Values:
        """Seconds that each level's ports are busy for a byte that every rank sends, [levels]."""
        if way != _PLAIN or self._job.routing is None:
            return np.zeros(len(self._job.cluster.levels))
        exchange = Exchange(self._job.cluster, Mesh(dp_shard=ep * etp, ep=ep, etp=etp), WAYS[way])
        return exchange.busy_s(np.ones((1, ep, 1), np.int64), lambda _: [])[:, 0]


class _Lanes:
    """Prices of one part for ranks that have so many *sequences*, or pieces of them, in a micro-batch."""

    def __init__(self, job: Job, sequences: int, *, grows: bool) -> None:
        pricing = LeastPricing(job, grows=grows)
        self._sequences = sequences
        self._tokens = TokenPrices(pricing)
        self._rows = RoutedPrices(pricing, self._tokens, EvenRows(job) if job.routing is not None else None)
        self._sums: dict[tuple[object, ...], StageSums] = {}

    def tokens(self, edges: Edges, tp: int, cp: int, recompute: int) -> StageSums:
        """What runs over a rank's own tokens, of one split."""
        key = edges.tobytes(), tp, cp, recompute
        if key not in self._sums:
            self._sums[key] = stage_sums([self._tokens.passes(edges, tp, cp, self._sequences, recompute)], edges)
        return self._sums[key]

    def routed(self, edges: Edges, tp: int, cp: int, recompute: int, ep: int) -> StageSums:
        """What runs over routed rows, of one split."""
        key = edges.tobytes(), tp, cp, recompute, ep
        if key not in self._sums:
            self._sums[key] = stage_sums([self._passes(edges, tp, cp, recompute, ep)], edges)
        return self._sums[key]

    def ends(self, tp: int, cp: int) -> Ends:
        """The embedding and the loss."""
        return self._tokens.ends(tp, cp, self._sequences)

    def row_bytes(self, edges: Edges, tp: int, cp: int, recompute: int, ep: int) -> Values:
        """Bytes of a row in all exchanges of each layer, [3, layers]."""
        return self._passes(edges, tp, cp, recompute, ep).row_bytes

    def sent_tokens(self, tp: int, cp: int) -> int:
        """Tokens that a rank sends to experts."""
        return self._rows.sent_tokens(tp, cp, self._sequences)

    def _passes(self, edges: Edges, tp: int, cp: int, recompute: int, ep: int) -> Passes:
        return self._rows.passes(edges, tp, cp, self._sequences, ep, 1, recompute)


def _with_few_makes(job: Job) -> Job:
    """*job* whose layers mix no more residual blocks than the first of their kind that mixes any: more cost more."""
    fewest: dict[Layer, int] = {}
    for layer in job.architecture.layers:
        kind = replace(layer, index=0, residual_blocks=0)
        if layer.residual_blocks:
            fewest[kind] = min(layer.residual_blocks, fewest.get(kind, layer.residual_blocks))
    layers = tuple(
        replace(layer, residual_blocks=fewest[replace(layer, index=0, residual_blocks=0)])
        if layer.residual_blocks
        else layer
        for layer in job.architecture.layers
    )
    return replace(job, architecture=replace(job.architecture, layers=layers))


def _pieces(cp: Column) -> Column:
    """Pieces of a sequence for which operators are listed in place of *cp*: the fewest whose pieces make up so many."""
    return np.array([next((d for d in range(2, degree) if degree % d == 0), degree) for degree in cp.tolist()])


def _listed(splits: Splits, *names: str) -> tuple[list[Key], Column]:
    """The distinct values of columns for which operators are listed, and which each split has: of cp its pieces, of ep
    whether experts are on several ranks.
    """
    keys, which = splits.numbered(*names)
    columns = dict(zip(names, np.array(keys).T, strict=True))
    columns["cp"] = _pieces(columns["cp"])
    if "ep" in columns:
        columns["ep"] = np.minimum(columns["ep"], 2)
    ways = [tuple(row) for row in np.stack([columns[name] for name in names], axis=1).tolist()]
    known = list(dict.fromkeys(ways))
    return known, np.array([known.index(way) for way in ways], np.int64)[which]
