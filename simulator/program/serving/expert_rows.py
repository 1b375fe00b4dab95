"""Rows that experts get in one iteration, as an expectation over what tokens choose.

With few tokens, experts go without: of N tokens that each choose an expert with the chance c = top_k x its share, none
does with (1 - c)^N, tokens being independent. Only the weights of experts that were chosen are read. A popularity says
what share of the rows a slot takes; a token takes an expert at most once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.hardware.accelerator import Accelerator
from simulator.hardware.kernel_time import kernel_time
from simulator.model.operator import Kernel
from simulator.routing.table import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRows:
    """Of some layers, [layers, ep, slots of a rank]."""

    rows: FloatArray
    """Expected rows of each slot."""
    touched: FloatArray
    """Chance that it gets any."""

    @property
    def of_ranks(self) -> FloatArray:
        """Expected rows of each rank, [layers, ep]."""
        return np.asarray(self.rows.sum(axis=2))


def expert_rows(popularity: FloatArray, tokens: float, top_k: int) -> ExpertRows:
    """What *tokens* tokens of all ranks together, each of which chooses *top_k* experts, make of *popularity*."""
    chance = np.minimum(1.0, top_k * popularity)
    return ExpertRows(tokens * top_k * popularity, -np.expm1(tokens * np.log1p(-np.minimum(chance, 1 - 1e-12))))


def routed_s(accelerator: Accelerator, kernel: Kernel, load: ExpertRows, gap_s: float) -> tuple[FloatArray, str]:
    """Seconds of a routed *kernel* on each rank, [layers, ep], and their grade.

    Rows of a grouped product are those that a chosen expert gets, so that whole tiles are counted as often as experts
    are chosen: exact where a rank's experts are alike.
    """
    rows, given = load.of_ranks, load.rows / np.maximum(load.touched, 1e-12)
    weights = kernel.fixed_bytes * load.touched.sum(axis=2)
    time = kernel_time(
        accelerator,
        kernel.kind,
        kernel.flops * rows / kernel.launches,
        (kernel.bytes * rows + weights) / kernel.launches,
        kernel.shape,
        kernel.dtype,
        rows=given if kernel.kind == "served_experts" else None,
    )
    return (np.asarray(time.seconds) + gap_s) * kernel.launches, time.grade
