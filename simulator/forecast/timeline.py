"""What the telling ranks did and what their memory held: the data behind the charts and the trace.

A forecast simulates every distinct behaviour; these tables keep a few ranks of it (median, hottest, coldest), so that
their size does not grow with the job.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ABSENT_NS = -1
"""Start and end of a task in the column of a rank that does not run it (it belongs to another pipeline stage)."""


@dataclass(frozen=True, slots=True)
class TellingRank:
    """A rank worth looking at."""

    rank: int
    """Global rank number."""
    label: str
    """Why: "median", "hottest", "coldest"."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Tasks of the simulated step, in the order in which the host issued them.

    Arrays are parallel: entry i of each is task i; *start_ns* and *end_ns* have one column per telling rank.
    """

    ranks: tuple[TellingRank, ...]
    name: tuple[str, ...]
    stream: tuple[str, ...]
    """compute, all_to_all, fsdp_gather, fsdp_reduce, fsdp_all_reduce, host, ..."""
    kind: tuple[str, ...]
    """What the time is spent on, for colours: gemm, grouped_gemm, attention, kda, elementwise, all_to_all, all_gather,
    reduce_scatter, all_reduce, optimizer, loss, ..."""
    phase: tuple[str, ...]
    """forward, recompute, backward, optimizer."""
    layer: np.ndarray
    """int, [tasks]; -1 where the task belongs to no layer."""
    micro_batch: np.ndarray
    """int, [tasks]; -1 where the task belongs to no micro-batch."""
    start_ns: np.ndarray
    """int64, [tasks, ranks]."""
    end_ns: np.ndarray
    """int64, [tasks, ranks]."""
    wire_bytes: np.ndarray
    """float64, [tasks, ranks]: bytes that the rank sends in the task."""
    waited_for: np.ndarray
    """int, [tasks, ranks]: of a task of the compute stream that began later than it could have behind the one before,
    the task that it waited for last; -1 where that is the host, or there was no wait."""


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Bytes held in one tier of one rank over the simulated step, by kind of tensor."""

    rank: TellingRank
    tier: str
    """hbm, ddr or nvme."""
    capacity_bytes: float
    time_ns: np.ndarray
    """int64, [points], never falling."""
    bytes_by_kind: dict[str, np.ndarray]
    """float64, [points] each, in stacking order: parameters, gradients, optimizer, saved activations, gathered
    parameters, reduce buffers, communication buffers, logits, workspace, context."""
