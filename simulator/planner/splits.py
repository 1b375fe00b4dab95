"""Splits: every way to lay a job out on its cards that divides without remainder.

A split is the seven degrees of the mesh and settings that go with them: how data parallelism shards (ZeRO 3 or 1), what
backward recomputes, how many sequences a micro-batch takes, how passes follow each other in a pipeline, how layers lie
on its stages (`sharing.py`), and how rows find their experts (`variants.py`). Candidates are columns of numbers, so
that bounds can be evaluated for all at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.hardware.cluster import Cluster
from simulator.model.architecture import Architecture, MixtureOfExperts
from simulator.model.context import context_problems
from simulator.model.operator import Context
from simulator.model.recompute import NOTHING, WHOLE, Recompute, needs_local_keys
from simulator.model.split import split_problems
from simulator.program.exchanges import exchanges

Column = npt.NDArray[np.int64]
SEQUENCES_AT_ONCE = (1, 2, 4)
"""Sequences of a micro-batch that are tried beside the scenario's own; several only where sequences are not cut."""
SHORTEST_PIECE = 1024
"""Tokens of a sequence below which context parallelism is not tried: its exchanges would outlast its arithmetic."""
RECOMPUTE = ("none", "full")
OWN = len(RECOMPUTE)
"""The recomputation that the scenario asks for, where that is neither."""
SCHEDULES = ("1f1b", "zb_h1", "dualpipe", "gpipe")
WAYS = tuple(exchanges())
NO_OVERLAP, OVERLAP, OVERLAP_WEIGHTS = range(3)
"""Exchanges exposed; beside the other pass of a pair; gradients of weights beside them, too."""
EVEN, OPEN = range(2)
"""How layers lie on stages: as even as can be, or as it will be found to be best; larger numbers count in a table."""


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """One candidate. *recompute* counts in `RECOMPUTE`, and `OWN` is one more; *schedule* in `SCHEDULES`, *exchange* in
    `WAYS`.
    """

    dp_replicate: int
    dp_shard: int
    tp: int
    cp: int
    pp: int
    ep: int
    etp: int
    zero: int
    recompute: int
    micro_batch_sequences: int
    schedule: int = 0
    virtual_pipeline: int = 1
    overlap: int = NO_OVERLAP
    exchange: int = 0
    sharing: int = EVEN
    stage_layers: tuple[int, ...] = ()
    """Layers of each virtual stage; empty: as even as can be, or not yet found."""

    @property
    def degrees(self) -> dict[str, int]:
        """The `parallel` section of a scenario."""
        return {name: getattr(self, name) for name in DEGREES}

    @property
    def ranks(self) -> int:
        """Cards that it takes."""
        return self.dp_replicate * self.dp_shard * self.tp * self.cp * self.pp

    def settings(self) -> dict[str, Any]:
        """Values by path, as a scenario takes them: those too that say how to do what this split does not do."""
        return {
            "parallel": {
                **self.degrees,
                "virtual_pipeline": self.virtual_pipeline,
                **({"stage_layers": list(self.stage_layers)} if self.stage_layers else {}),
            },
            "training.zero": self.zero,
            **({"training.recompute": RECOMPUTE[self.recompute]} if self.recompute < OWN else {}),
            "training.micro_batch_sequences": self.micro_batch_sequences,
            "training.pipeline_schedule": SCHEDULES[self.schedule],
            "training.overlap_exchanges": self.overlap != NO_OVERLAP,
            "training.delay_weight_gradients": self.overlap == OVERLAP_WEIGHTS,
            "training.exchange": WAYS[self.exchange],
        }


NAMES = tuple(name for name in Split.__dataclass_fields__ if name != "stage_layers")
DEGREES = NAMES[:7]
LAYOUT = (*DEGREES[1:4], *DEGREES[5:], "zero", "micro_batch_sequences")
"""What says how ranks of a stage share weights and batch; dp_replicate follows from the cards."""
PLAIN = (SCHEDULES.index("1f1b"), 1, NO_OVERLAP, WAYS.index("all_to_all"), EVEN)
"""The last columns of a candidate before it is varied."""


class Splits:
    """Many candidates, a column for each field of :class:`Split`; *shares* is the table that uneven stages count in."""

    def __init__(self, rows: Column, shares: list[tuple[int, ...]] | None = None) -> None:
        self._rows = rows
        self.shares: list[tuple[int, ...]] = shares if shares is not None else [(), ()]

    @classmethod
    def of(cls, splits: list[Split]) -> Splits:
        """The columns of *splits*, whose layers are shared evenly or openly."""
        rows = [[getattr(split, name) for name in NAMES] for split in splits]
        return cls(np.array(rows, np.int64).reshape(-1, len(NAMES)))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, name: str) -> Column:
        column: Column = self._rows[:, NAMES.index(name)]
        return column

    def split(self, number: int) -> Split:
        """The candidate in one row."""
        values = dict(zip(NAMES, self._rows[number].tolist(), strict=True))
        return Split(**values, stage_layers=self.shares[values["sharing"]])

    def share(self, number: int, stage_layers: tuple[int, ...]) -> None:
        """Settle how the layers of one candidate lie on its stages; empty: as even as can be."""
        if stage_layers not in self.shares:
            self.shares.append(stage_layers)
        self._rows[number, NAMES.index("sharing")] = self.shares.index(stage_layers)

    def with_one_more(self, split: Split) -> Splits:
        """These and *split*, which is the last."""
        grown = Splits(np.concatenate([self._rows, Splits.of([split])._rows]), self.shares)
        grown.share(len(self), split.stage_layers)
        return grown

    def set(self, **columns: int) -> Splits:
        """The same candidates with some columns of one value each."""
        rows = self._rows.copy()
        for name, value in columns.items():
            rows[:, NAMES.index(name)] = value
        return Splits(rows, self.shares)

    def where(self, chosen: npt.NDArray[np.bool_], **columns: int) -> Splits:
        """The same candidates with some columns of one value each where *chosen*."""
        rows = self._rows.copy()
        for name, value in columns.items():
            rows[chosen, NAMES.index(name)] = value
        return Splits(rows, self.shares)

    @classmethod
    def joined(cls, several: list[Splits]) -> Splits:
        """All candidates of *several*, one after the other."""
        return cls(np.concatenate([one._rows for one in several]), several[0].shares)

    def only(self, chosen: npt.NDArray[Any] | slice) -> Splits:
        """The candidates in some rows: numbers, a slice, or True for those to keep."""
        return Splits(self._rows[chosen], self.shares)

    def like(self, split: Split) -> int | None:
        """The first candidate that is *split* but for how layers lie on its stages; None where there is none."""
        wanted = [getattr(split, name) for name in NAMES[:-1]]
        found = np.flatnonzero((self._rows[:, :-1] == wanted).all(axis=1))
        return int(found[0]) if len(found) else None

    def alike(self, number: int, *, but: str) -> Column:
        """Numbers of the candidates that differ from one at most in the column *but*."""
        columns = [column for column, name in enumerate(NAMES) if name != but]
        return np.flatnonzero((self._rows[:, columns] == self._rows[number, columns]).all(axis=1))

    def numbered(self, *names: str) -> tuple[list[tuple[int, ...]], Column]:
        """The distinct values of some columns together, and which of them each candidate has."""
        first, which = self.distinct(*names)
        columns = [NAMES.index(name) for name in names]
        return [tuple(row) for row in self._rows[first][:, columns].tolist()], which

    def distinct(self, *names: str) -> tuple[Column, Column]:
        """Numbers of candidates that differ in some columns, one for each distinct value of them together, and which of
        these each candidate is like.
        """
        codes = np.zeros(len(self), np.int64)
        for name in names:
            column = self[name]
            codes = codes * (int(column.max(initial=0)) + 1) + column
        _, first, which = np.unique(codes, return_index=True, return_inverse=True)
        return first, which


def enumerate_splits(
    architecture: Architecture,
    cluster: Cluster,
    *,
    sequence_length: int,
    global_batch_sequences: int,
    packed: bool = False,
    context: Context = "all_gather",
    zeros: tuple[int, ...] = (3, 1),
    own: Recompute = NOTHING,
    own_sequences: int = 1,
) -> Splits:
    """Every valid split of *architecture* over *cluster*, sharded in one of the ways of *zeros*, with the scenario's
    *own* recomputation where it has one, and with its *own_sequences* in a micro-batch.

    tp and etp stay within the scale-up domain; heads, widths, experts and sequences divide, heads by cp too where
    *context* shares them out, and cp is 1 where documents are *packed* into sequences; a pipeline stage has at least a
    layer; each data-parallel rank gets whole micro-batches, and a pipeline at least one a stage.
    """
    experts = _experts(architecture)
    domain = cluster.scale_up_domain
    cuts = [n for n in divisors(domain) if not split_problems(architecture, 1, 1, n)] if experts else [1]
    found: list[tuple[int, ...]] = []
    for tp, cp, pp in _model_splits(architecture, cluster, sequence_length, context):
        if packed and cp > 1:
            continue
        stage_ranks = cluster.accelerators // pp
        for dp_shard in divisors(stage_ranks // (tp * cp)):
            dp_replicate = stage_ranks // (tp * cp * dp_shard)
            tried = {*SEQUENCES_AT_ONCE[: None if cp == 1 else 1], own_sequences}
            sizes = _sequences_at_once(tried, global_batch_sequences, dp_shard * dp_replicate, pp)
            for ep, etp in _expert_splits(experts, dp_shard * cp * tp, cuts) if sizes else ():
                sharded = dp_shard * cp > 1 or (experts > 0 and dp_shard * tp > ep * etp)
                ways = zeros if sharded else zeros[-1:]
                found += [
                    (dp_replicate, dp_shard, tp, cp, pp, ep, etp, zero, recompute, size, *PLAIN)
                    for zero in ways
                    for recompute in _recomputations(architecture, own, context, cp, pp, zero)
                    for size in sizes
                ]
    return Splits(np.array(found, np.int64).reshape(-1, len(NAMES)))


def _recomputations(
    architecture: Architecture, own: Recompute, context: Context, cp: int, pp: int, zero: int
) -> Iterator[int]:
    """None, full, and the job's *own* where the forecast takes it together with the split."""
    yield from range(len(RECOMPUTE))
    selective = own not in (NOTHING, WHOLE)
    stages_have_it = own.every <= -(-len(architecture.layers) // pp)
    known = cp == 1 or context == "ring" or not needs_local_keys(own)
    if selective and stages_have_it and known and not (own.keep and zero == 1):
        yield OWN


def divisors(number: int) -> list[int]:
    """All divisors, smallest first."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _experts(architecture: Architecture) -> int:
    """Routed experts of a layer; 0 for a dense model."""
    parts = [layer.feed_forward for layer in architecture.moe_layers()]
    return max((part.experts for part in parts if isinstance(part, MixtureOfExperts)), default=0)


def _model_splits(
    architecture: Architecture, cluster: Cluster, sequence_length: int, context: Context
) -> Iterator[tuple[int, int, int]]:
    cards, lengths = cluster.accelerators, (sequence_length,)
    for tp in divisors(cards):
        if cluster.scale_up_domain % tp or split_problems(architecture, tp, 1, 1, lengths):
            continue
        for cp in divisors(cards // tp):
            short = cp > 1 and sequence_length < cp * SHORTEST_PIECE
            unfit = split_problems(architecture, tp, cp, 1, lengths) or context_problems(architecture, context, tp, cp)
            if short or unfit:
                continue
            for pp in divisors(cards // (tp * cp)):
                if pp <= len(architecture.layers):
                    yield tp, cp, pp


def _expert_splits(experts: int, replica_ranks: int, cuts: list[int]) -> Iterator[tuple[int, int]]:
    """(ep, etp): whole experts on every rank, an expert's width cut among one of *cuts* ranks."""
    if not experts:
        yield 1, 1
        return
    for ep in divisors(replica_ranks):
        if experts % ep == 0:
            yield from ((ep, etp) for etp in cuts if replica_ranks % (ep * etp) == 0)


def _sequences_at_once(tried: set[int], batch: int, data_parallel: int, pp: int) -> list[int]:
    """Those of *tried* of which each data-parallel rank gets whole micro-batches, one for each stage at least."""
    return [
        size for size in sorted(tried) if batch % (data_parallel * size) == 0 and batch // (data_parallel * size) >= pp
    ]
