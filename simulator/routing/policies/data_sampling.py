"""Sampling that gives every rank of every micro-batch alike amounts of tokens and of image patches.

Sequences go, heaviest first, to the place that is then least full, where heavy and full mean the larger share, that of
tokens or that of patches. Tokens stand for their linear cost; where attention over long sequences dominates, equal sums
of tokens are not equal work. The order of samples changes, which a data loader must be free to do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.routing.outcome import Outcome, Setting, table_rows
from simulator.routing.placement import contiguous
from simulator.routing.table import FloatArray, IntArray, RoutingTable


@dataclass(frozen=True, slots=True)
class Options:
    """It has none."""


def apply(planned: RoutingTable, replayed: RoutingTable, setting: Setting, options: Options) -> Outcome:  # noqa: ARG001
    """*planned* does not matter. Raise :exc:`ValueError` when the setting tells no sequences."""
    tokens, patches = setting.sequence_tokens, setting.image_patches
    if tokens is None:
        raise ValueError("needs the tokens of each sequence, but sequences are not told apart")
    amounts = [tokens] if patches is None else [tokens, patches]
    shares = np.stack([amount / max(1, amount.sum()) for amount in amounts], axis=1)
    place = lightest_bins(shares, setting.micro_batches * setting.ep)
    source = setting.deal(place, tokens)
    placement = contiguous(replayed.layers, replayed.experts, setting.ep)
    rows = np.stack([placement.rows(table_rows(replayed, int(n), setting.top_k)) for n in source.sum(axis=1)])
    return Outcome(placement, rows, source, None if patches is None else setting.deal(place, patches))


def lightest_bins(amounts: FloatArray | IntArray, bins: int) -> IntArray:
    """The bin of each item with *amounts* [items, kinds]: largest first, to where the fullest kind stays lowest."""
    held = np.zeros((bins, amounts.shape[1]))
    place = np.empty(len(amounts), dtype=np.int64)
    for item in np.argsort(-amounts.max(axis=1), kind="stable"):
        place[item] = (held + amounts[item]).max(axis=1).argmin()
        held[place[item]] += amounts[item]
    return place
