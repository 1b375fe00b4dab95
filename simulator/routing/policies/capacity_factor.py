"""A bound on the rows of an expert; what exceeds it is dropped.

An expert takes ceil(factor * tokens * top_k / experts) rows of a micro-batch, tokens counted over the group. Frameworks
that bound what each *source* rank may send drop a little more, since ranks' mixes differ; here they are alike. Dropped
rows skip the layer, which costs quality that is not modelled. Method: section 2.2 of arXiv 2101.03961.

With padding, an expert takes ceil(factor * tokens * top_k / experts) rows from every rank, tokens counted there: what a
rank does not send is filled with zeros, which are computed as well (Megatron-LM,
`--moe-pad-expert-input-to-capacity`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from simulator.routing.outcome import Outcome, Setting, placed
from simulator.routing.placement import contiguous
from simulator.routing.table import RoutingTable


@dataclass(frozen=True, slots=True)
class Options:
    """How much an expert takes."""

    factor: float = 1.25
    """Capacity over an even share."""
    pad: bool = False
    """Whether what an expert has too little is filled up with zeros."""


def apply(planned: RoutingTable, replayed: RoutingTable, setting: Setting, options: Options) -> Outcome:  # noqa: ARG001
    """*planned* does not matter. Raise :exc:`ValueError` for a factor that is not positive."""
    if options.factor <= 0:
        raise ValueError(f"factor is {options.factor:g}, expected more than 0")
    whole = placed(contiguous(replayed.layers, replayed.experts, setting.ep), replayed, setting)
    even = whole.source_tokens * setting.top_k / replayed.experts
    if options.pad:
        capacity = np.array([sum(ceil(options.factor * rows) for rows in ranks) for ranks in even])
    else:
        capacity = np.array([ceil(options.factor * rows) for rows in even.sum(axis=1)])
    most = np.broadcast_to(capacity[:, None, None, None], whole.rows.shape)
    kept = np.minimum(whole.rows, most)
    dropped = (whole.rows - kept).sum(axis=(0, 2, 3))
    capped = replace(whole, rows=kept, dropped_rows=dropped, destinations=None)
    return replace(capped, rows=most, padded=True, zero_rows=int((most - kept).sum())) if options.pad else capped
