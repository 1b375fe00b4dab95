"""AdamW with moments of one byte an element and a scale for each block of 256 (Dettmers et al., 2021), as in torchao.

A tensor that is small or no multiple of a block keeps plain moments. Each tensor is updated by compiled code of its
own: one kernel for the new scales, one that looks every moment up in a table of 256 values and writes the nearest one.

Measured with torchao 0.18 on torch 2.11, H200: beside moments and parameters, two tensors of 4 bytes an element and
their scales exist for one tensor at a time; the host takes 0.84 ms for each tensor, for the guards of a compiled call
on tensors that wrap others (146 of them: 123 ms); three kernels run a tensor.
"""

from __future__ import annotations

from simulator.program.emitter import allocation
from simulator.program.optimizer import Optimizer
from simulator.program.update import Update

NAME = "adamw_8bit"
BLOCK = 256
SMALLEST = 4096
"""Elements of the smallest tensor whose moments are kept in one byte."""
SCALE_BYTES = 4
TABLE_BYTES = 4.0 * 256
KERNELS = 3
HOST_S = 0.84e-3
CODE_BYTES = 4
"""An element's value on its way to the nearest table entry."""


def moments(elements: float, _matrix: bool, optimizer: Optimizer) -> tuple[float, ...]:
    """Codes, scales and table of both moments."""
    if not _in_blocks(elements):
        return (elements * optimizer.stored_bytes,) * 2
    return (elements, elements / BLOCK * SCALE_BYTES, TABLE_BYTES) * 2


def write(update: Update) -> None:
    """One pass, priced on what two kernels for a tensor take together."""
    largest = max((tensor.elements for tensor in update.owned if _in_blocks(tensor.elements)), default=0.0)
    values = 2 * largest * (CODE_BYTES + SCALE_BYTES / BLOCK)
    update.sweep(
        "optimizer",
        update.owned,
        "optimizer_8bit",
        _passed_bytes(update.optimizer.stored_bytes),
        kernels=KERNELS,
        scratch=[allocation("optimizer.values", "workspace", values)],
        host_s=HOST_S * len(update.owned),
    )


def _passed_bytes(stored_bytes: int) -> int:
    """An element: gradient and codes read for scales; all of it read, parameter and codes written for values."""
    return (stored_bytes + 2) + (3 * stored_bytes + 4)


def _in_blocks(elements: float) -> bool:
    return elements >= SMALLEST and elements % BLOCK == 0
