"""Passes: what the layers of a model cost in one micro-batch, in arrays that run over layers."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Amounts = npt.NDArray[np.float64]
PARTS = ("compute_s", "exposed_tp_s", "exposed_cp_s", "exposed_all_to_all_s", "launch_bound_s")
"""What the time of a layer is made of, named as the forecast names it; the last is the host's, beside all others."""
COMPUTE, TENSOR, CONTEXT, EXCHANGE, HOST = range(5)
"""Their positions."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of one micro-batch by part and layer, [parts, layers], and the bytes that backward needs."""

    forward: Amounts
    backward: Amounts
    again: Amounts
    """Of what runs again within the backward pass."""
    saved: Amounts
    """Bytes kept for backward on each expert-parallel rank, [layers, ranks]."""
    restored: Amounts
    """Bytes that are there again before the layer's backward pass begins, [layers, ranks]."""
    row_bytes: Amounts
    """Bytes of a row in all exchanges of the forward pass, the backward pass, and what runs again, [3, layers]."""
    told: Amounts
    """How often the host waits for how many rows will come, in the same three, [3, layers]."""
    waits: Amounts
    """Seconds of transfers between two exchanges that no work of another pass runs beside, forward and backward,
    [2, layers]."""
    late: Amounts
    """Seconds by which the host is late behind telling numbers of rows: forward and where that runs again, if what is
    sent before takes no time, and where a backward pass comes next, [3, layers]."""
    late_bytes: Amounts
    """Bytes of a row in what is sent before, [layers]."""

    def where(self, chosen: npt.NDArray[np.bool_], other: Passes) -> Passes:
        """These where a layer is *chosen*, else those of *other*."""
        by_row = {"saved", "restored"}
        return Passes(
            *(
                np.where(
                    chosen[:, None] if field.name in by_row else chosen,
                    getattr(self, field.name),
                    getattr(other, field.name),
                )
                for field in fields(self)
            )
        )
