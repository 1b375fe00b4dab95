"""From popularity to whole rows: how many rows each expert computes, and from which rank they come.

Every source rank is assumed to send the same mix of experts. That is right for shuffled training batches and wrong
where a rank serves one domain; the differences between ranks are then larger than forecast here.
"""

from __future__ import annotations

import numpy as np

from simulator.routing.cap import cap_counts
from simulator.routing.table import IntArray, RoutingTable


def rows_per_expert(table: RoutingTable, layer: int, tokens: int, top_k: int) -> IntArray:
    """Rows of each expert, [experts], when *tokens* tokens pass MoE layer *layer*: the table's shares, in whole rows.

    They sum to exactly *tokens* * *top_k* and none exceeds *tokens*. Rounding is by largest remainder, ties to the
    lower expert. Raise :exc:`ValueError` when *top_k* exceeds the experts.
    """
    counts = cap_counts(table.counts[layer : layer + 1], top_k)[0]
    total = tokens * top_k
    quota = np.minimum(counts * (total / counts.sum()), tokens)
    rows: IntArray = np.floor(quota).astype(np.int64)
    remainder = np.where(rows < tokens, quota - rows, -1.0)
    rows[np.argsort(-remainder, kind="stable")[: total - int(rows.sum())]] += 1
    return rows


def source_rows(rows: IntArray, ranks: int) -> IntArray:
    """Split *rows* [..., experts] over the *ranks* they come from: [..., ranks, experts].

    Each rank sends the same number of rows, each column sums to its expert's rows, and no entry is further than one row
    from the even split; nor is any sum over neighbouring experts, such as those of one destination. The rows, lined up
    by expert, are dealt to the ranks in turn. Raise :exc:`ValueError` when the total does not divide by *ranks*.
    """
    ends = np.cumsum(rows, axis=-1)
    uneven = ends[..., -1] % ranks != 0
    if np.any(uneven):
        raise ValueError(f"{int(ends[..., -1][uneven].flat[0])} rows do not divide over {ranks} ranks")
    starts = np.concatenate([np.zeros_like(ends[..., :1]), ends], axis=-1)[..., None, :]
    rounds, turn = np.divmod(starts, ranks)
    # One byte an entry, as the whole matrix in int64 would be written twice.
    ahead = (turn > np.arange(ranks)[:, None]).view(np.int8)
    return np.asarray(np.diff(rounds) + (ahead[..., 1:] - ahead[..., :-1]))
