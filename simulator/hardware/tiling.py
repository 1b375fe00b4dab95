"""How a library cuts a matrix product into tiles, and how much the compute units do for those.

A compute unit makes one tile of the output at a time, so that work comes in whole tiles, and tiles in whole waves over
the compute units (NVIDIA, Matrix Multiplication Background User's Guide, "Tile Quantization" and "Wave Quantization").
Small tiles load more operands per product; short inner dimensions leave the filling and draining of a tile uncovered.
A library that finds too few tiles splits the inner dimension among compute units and adds the parts up in fp32
(split-K, CUTLASS "Efficient GEMM"). It is assumed to pick the fastest way: its heuristics miss that now and then.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from simulator.hardware.figure import Floats, Record

Side = Annotated[int, Field(ge=1)]

SHORTEST_SPLIT = 256
"""Inner elements that a part of a split product has at least."""
DEPTH_STEP = 64
"""Inner elements of one step of a tile; parts of a split product are whole steps."""
FP32_BYTES = 4


class Tiling(Record):
    """The ways in which a library may cut a product."""

    tiles: Annotated[tuple[tuple[Side, Side], ...], Field(min_length=1)]
    """Rows and columns of the tiles that it has kernels for. What two units make together counts as one tall tile."""
    thin: Annotated[float, Field(ge=0)] = 0.0
    """Cost of loading operands: a tile of r rows and c columns takes 1 + thin (1 / r + 1 / c) times its arithmetic."""
    splits: Annotated[tuple[Side, ...], Field(min_length=1)] = (1,)
    """Parts into which the inner dimension may be cut."""

    def work(
        self, rows: Floats, columns: int, depth: int, *, fill: float, units: float, bytes_per_flop: Floats
    ) -> Floats:
        """FLOPs that all compute units together could have done in the time of one product, or of one per expert.

        *rows* are those of each product along the last axis, [..., products]; all have *columns* and *depth*. A tile
        costs *fill* inner elements more than it has; *units* compute units share the tiles. *bytes_per_flop* is what
        memory moves while one FLOP is done, for writing and reading the parts of a split product.
        """
        high, wide = np.array(self.tiles, float).T[:, :, None]
        parts = np.array([s for s in self.splits if s == 1 or depth >= s * SHORTEST_SPLIT], float)
        part_depth = np.where(parts == 1, depth, np.ceil(depth / parts / DEPTH_STEP) * DEPTH_STEP)
        tiles = np.ceil(rows[..., None, None, :] / high[..., None]).sum(axis=-1) * np.ceil(columns / wide)
        waves = np.ceil(tiles * parts / units)
        tile_flops = 2 * high * wide * (1 + self.thin * (1 / high + 1 / wide)) * (part_depth + fill)
        outputs = rows.sum(axis=-1)[..., None, None] * columns
        added_bytes = np.where(parts == 1, 0.0, (parts + 1) * FP32_BYTES * outputs)
        work = waves * units * tile_flops + added_bytes / np.asarray(bytes_per_flop)[..., None, None]
        return np.asarray(work.min(axis=(-2, -1)))

    def padding(self, rows: int, columns: int) -> float:
        """Outputs made over outputs asked for, with the tiles that waste least."""
        return min(-(-rows // r) * r * -(-columns // c) * c for r, c in self.tiles) / (rows * columns)
