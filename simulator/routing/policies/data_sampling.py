"""Sampling that gives every rank of every micro-batch alike amounts of tokens and of image patches.

Sequences are dealt to ranks, each as many, and a rank's to its micro-batches: heaviest first, to where the least lies
of what they bring, tokens or patches. Where a rank has one sequence for each micro-batch, the long ones meet in the
first: nobody waits, and that micro-batch needs the most memory. Tokens stand for their linear cost; where attention
over long sequences dominates, equal sums of tokens are not equal work. The order of samples changes, which a data
loader must be free to do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.routing.outcome import Outcome, Setting, composed
from simulator.routing.placement import contiguous
from simulator.routing.table import FloatArray, IntArray, RoutingTable


@dataclass(frozen=True, slots=True)
class Options:
    """It has none."""


def apply(planned: RoutingTable, replayed: RoutingTable, setting: Setting, options: Options) -> Outcome:  # noqa: ARG001
    """*planned* does not matter. Raise :exc:`ValueError` when the setting tells no sequences."""
    tokens, patches = setting.told_apart, setting.image_patches
    amounts = [tokens] if patches is None else [tokens, patches]
    shares = np.stack([amount / max(1, amount.sum()) for amount in amounts], axis=1)
    rank = lightest_bins(shares, setting.ep)
    place = np.empty_like(rank)
    for of_rank in (np.flatnonzero(rank == number) for number in range(setting.ep)):
        place[of_rank] = lightest_bins(shares[of_rank], setting.micro_batches) * setting.ep + rank[of_rank]
    return composed(contiguous(replayed.layers, replayed.experts, setting.ep), replayed, setting, place)


def lightest_bins(amounts: FloatArray | IntArray, bins: int) -> IntArray:
    """The bin of each item with *amounts* [items, kinds], each bin as many items, give or take one: largest first, to
    where sums of squares grow least, which is where the least lies of the kinds that the item brings.
    """
    held, room = np.zeros((bins, amounts.shape[1])), np.full(bins, -(-len(amounts) // bins))
    place = np.empty(len(amounts), dtype=np.int64)
    for item in np.argsort(-amounts.max(axis=1), kind="stable"):
        place[item] = np.where(room > 0, held @ amounts[item], np.inf).argmin()
        held[place[item]] += amounts[item]
        room[place[item]] -= 1
    return place
