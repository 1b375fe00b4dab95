"""Sums over each query's chosen keys, by a weight for each head: outputs from powers of two, gradients of queries.

    out(t, h) = per(t, h) sum over j of weight(t, j, h) kv(index(t, j))

A program sums P channels of one query's keys for all heads, which are the columns, and walks the keys with the next
steps on their way. On a Hopper GPU `kernels.sparse_sum_hopper` sums the latent channels of up to 128 heads.

Legend: T queries, H heads, J chosen keys, B keys of one step, C channels of a key, E those of a result, P those of one
program, X and Y the two parts of a program's heads, W the heads of all programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.sparse_tiles import Parts, hopper_widths, on_hopper

KEYS = 64
LEAST_KEYS = 16
"""Keys of the smallest step. A walk takes two steps at least where there are as many: of a single one of 64 keys, the
assembler that Triton 3.6 brings loses an address of the second part's weights."""
CHANNELS = 128
LAUNCH = {"num_warps": 4, "num_stages": 5}


@triton.jit
def _store(out_ptr, per_ptr, at_X, per_X, here_X, p_P, x_PX, SCALED: tl.constexpr):
    if SCALED:
        x_PX *= tl.load(per_ptr + per_X)[None, :]
    at_PX = out_ptr + at_X[None, :] + p_P[:, None]
    tl.store(at_PX, x_PX.to(out_ptr.dtype.element_ty), mask=here_X[None, :])


@triton.jit
def _sum(weight_ptr, kv_ptr, index_ptr, out_ptr, per_ptr, H, W, programs, first, J: tl.constexpr, C: tl.constexpr,
         E: tl.constexpr, P: tl.constexpr, B: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, SLICES: tl.constexpr,
         SCALED: tl.constexpr):  # fmt: skip
    """Channels *first* and on, P a program and SLICES times as many in all."""
    t = (tl.program_id(0) // SLICES // programs).to(tl.int64)
    h_X = tl.program_id(0) // SLICES % programs * (X + Y) + tl.arange(0, X)
    h_Y = tl.program_id(0) // SLICES % programs * (X + Y) + X + tl.arange(0, Y)
    p_P = first + tl.program_id(0) % SLICES * P + tl.arange(0, P)
    x_PX, y_PY = tl.zeros([P, X], dtype=tl.float32), tl.zeros([P, Y], dtype=tl.float32)
    for j in range(0, J, B):
        j_B = t * J + j + tl.arange(0, B)
        index_B = tl.load(index_ptr + j_B)
        row_B1 = (tl.maximum(index_B, 0).to(tl.int64) * C)[:, None]
        kv_BP = tl.load(kv_ptr + row_B1 + p_P[None, :], mask=(index_B >= 0)[:, None], other=0.0)
        x_PX = tl.dot(tl.trans(kv_BP), tl.load(weight_ptr + (j_B * W)[:, None] + h_X[None, :]), x_PX)
        y_PY = tl.dot(tl.trans(kv_BP), tl.load(weight_ptr + (j_B * W)[:, None] + h_Y[None, :]), y_PY)
    _store(out_ptr, per_ptr, (t * H + h_X) * E, t * W + h_X, h_X < H, p_P, x_PX, SCALED)
    _store(out_ptr, per_ptr, (t * H + h_Y) * E, t * W + h_Y, h_Y < H, p_P, y_PY, SCALED)


def weighted_sum(
    weight_TJW: torch.Tensor,
    kv_SC: torch.Tensor,
    index_TJ: torch.Tensor,
    heads: Parts,
    latent: int,
    out_THE: torch.Tensor,
    per_TW: torch.Tensor | None = None,
) -> None:
    """Write the sums by *weight_TJW* times *per_TW*: of latent channels, then of others where rows of the result do."""
    T, H, E = out_THE.shape
    J, P = index_TJ.shape[1], min(CHANNELS, latent)
    slices = [(0, P, latent // P), (latent, E - latent, 1)]
    if on_hopper(kv_SC, latent, J) and heads.programs == 1:
        from kernels.sparse_sum_hopper import sum_latents

        sum_latents(weight_TJW, kv_SC, index_TJ, hopper_widths(heads), out_THE)
        slices = slices[1:]
    sides = {
        "J": J,
        "C": kv_SC.shape[1],
        "E": E,
        "B": min(KEYS, J, max(LEAST_KEYS, J // 2)),
        "X": heads.x,
        "Y": heads.y,
    }
    for first, width, times in slices:
        if width > 0:
            arguments = (weight_TJW, kv_SC, index_TJ, out_THE, per_TW, H, heads.width, heads.programs, first)
            sides |= {"P": width, "SLICES": times, "SCALED": per_TW is not None}
            _sum[(T * heads.programs * times,)](*arguments, **sides, **LAUNCH)
