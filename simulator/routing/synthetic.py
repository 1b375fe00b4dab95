"""A made-up routing table: expert popularity drawn from a log-normal law, each expert for itself.

Recordings also have structure along the expert index, so that neighbours on one rank are hot together. Here they are
not, and ranks that hold many experts are loaded more evenly than in a recording of the same expert skew.
"""

from __future__ import annotations

import numpy as np

from simulator.routing.cap import cap_counts
from simulator.routing.table import RoutingTable


def synthesise(layers: int, experts: int, top_k: int, sigma: float, rng: np.random.Generator) -> RoutingTable:
    """Popularity exp(*sigma* * z), z standard normal, none above 1/*top_k*; the counts of a layer sum to *experts*.

    A *sigma* of 0 is exactly balanced. Raise :exc:`ValueError` when *top_k* exceeds *experts*.
    """
    popularity = np.exp(sigma * rng.standard_normal((layers, experts)))
    counts = popularity * (experts / popularity.sum(axis=1, keepdims=True))
    law = f"log-normal, sigma {sigma:g}" if sigma else "balanced"
    return RoutingTable(cap_counts(counts, top_k), name=law, source=f"synthetic: {law}")
