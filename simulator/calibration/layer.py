"""The layer whose kernels are run in a row, and their work as points without a time. Free of torch.

A dense layer of about Llama 8B's sizes with a product of experts, so that every sort of matmul is in it.
"""

from __future__ import annotations

from simulator.calibration.point import Point

ROWS, HIDDEN, WIDE = 8192, 4096, 14336
HEADS, HEAD = 32, 128
EXPERTS, EXPERT_ROWS = 14, 1024
REPEATED = 2
"""How often the products of one linear layer are run: forward, gradient of the rows, gradient of the weights."""


def work(kind: str) -> tuple[Point, ...]:
    """The products of the layer that are of *kind*, gemm or grouped_gemm; none for another.

    Attention is in the row for the power that it takes: its heads lie there otherwise than where it is timed alone.
    """
    return {"gemm": _products, "grouped_gemm": _grouped}.get(kind, tuple)()


def _products() -> tuple[Point, ...]:
    flops = 2.0 * ROWS * HIDDEN * WIDE
    traffic = 2.0 * (ROWS * HIDDEN + HIDDEN * WIDE + ROWS * WIDE)
    shapes = ((ROWS, WIDE, HIDDEN), (ROWS, HIDDEN, WIDE), (WIDE, HIDDEN, ROWS))
    once = (
        Point("gemm", "within a layer", shape, "bf16", flops, traffic, 0.0, 0.0, 0.0, shape != shapes[0])
        for shape in shapes
    )
    return tuple(once) * REPEATED


def _grouped() -> tuple[Point, ...]:
    rows = (EXPERT_ROWS,) * EXPERTS
    flops = 2.0 * EXPERTS * EXPERT_ROWS * HIDDEN * HIDDEN
    traffic = 2.0 * EXPERTS * (2 * EXPERT_ROWS * HIDDEN + HIDDEN * HIDDEN)
    shape = (EXPERTS, EXPERT_ROWS, HIDDEN, HIDDEN, EXPERT_ROWS)
    return (Point("grouped_gemm", "y = x W, even", shape, "bf16", flops, traffic, 0.0, 0.0, 0.0, False, rows),)
