"""Kimi delta attention over states that are kept between tokens."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import KimiDeltaAttention
from simulator.model.operator import Operator, Workload
from simulator.model.serving.formats import CacheFormat
from simulator.model.serving.iteration import Iteration
from simulator.model.serving.recurrent import recurrent

REPLACED = frozenset({"short_conv", "delta_rule"})


def cached(
    component: KimiDeltaAttention, hidden: int, workload: Workload, iteration: Iteration, cache: CacheFormat
) -> Iterator[Operator]:
    """From the convolutions' input to the core's output; states are in fp32 whatever the *cache* of keys is."""
    del cache
    yield from recurrent(component, hidden, workload, iteration, REPLACED)
