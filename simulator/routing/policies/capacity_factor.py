"""A bound on the rows of an expert; what exceeds it is dropped.

An expert takes ceil(factor * tokens * top_k / experts) rows of a micro-batch, tokens counted over the group. Frameworks
that bound what each *source* rank may send drop a little more, since ranks' mixes differ; here they are alike. Dropped
rows skip the layer, which costs quality that is not modelled. Method: section 2.2 of arXiv 2101.03961.
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


def apply(planned: RoutingTable, replayed: RoutingTable, setting: Setting, options: Options) -> Outcome:  # noqa: ARG001
    """*planned* does not matter. Raise :exc:`ValueError` for a factor that is not positive."""
    if options.factor <= 0:
        raise ValueError(f"factor is {options.factor:g}, expected more than 0")
    whole = placed(contiguous(replayed.layers, replayed.experts, setting.ep), replayed, setting)
    even = whole.source_tokens.sum(axis=1) * setting.top_k / replayed.experts
    capacity = np.array([ceil(options.factor * rows) for rows in even])
    kept = np.minimum(whole.rows, capacity[:, None, None, None])
    return replace(whole, rows=kept, dropped_rows=(whole.rows - kept).sum(axis=(0, 2, 3)))
