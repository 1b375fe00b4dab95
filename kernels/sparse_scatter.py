"""Gradients of the keys that queries chose, each query's share added in fp32 by atomics.

    dkv(index(t, j)) += sum over h of ds(t, j, h) q(t, h) + p(t, j, h) do(t, h), the latter to the latent channels alone

A program holds P channels of one query's and gradient's heads and walks its keys, so that each key of a query is added
once for all heads of a program. On a Hopper GPU `kernels.sparse_scatter_hopper` adds those of up to 128 heads.

Legend: T queries, H heads, J chosen keys, B keys of one step, C channels, D those of the latent, P those of one
program, X and Y the two parts of a program's heads, W the heads of all programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.sparse_tiles import Parts, hopper_widths, on_hopper, part_of_heads

KEYS = 64
CHANNELS = 64
LAUNCH = {"num_warps": 4, "num_stages": 3}


@triton.jit
def _add(p_ptr, ds_ptr, q_ptr, do_ptr, index_ptr, dkv_ptr, H, W, programs, first, J: tl.constexpr, C: tl.constexpr,
         D: tl.constexpr, P: tl.constexpr, B: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, SLICES: tl.constexpr,
         VALUES: tl.constexpr):  # fmt: skip
    """Channels *first* and on, P a program; VALUES: they are values too."""
    p_P = first + tl.program_id(0) % SLICES * P + tl.arange(0, P)
    t = (tl.program_id(0) // SLICES // programs).to(tl.int64)
    h_X = tl.program_id(0) // SLICES % programs * (X + Y) + tl.arange(0, X)
    h_Y = tl.program_id(0) // SLICES % programs * (X + Y) + X + tl.arange(0, Y)
    q_XP = part_of_heads(q_ptr, t * H, h_X, H, C, p_P)
    q_YP = part_of_heads(q_ptr, t * H, h_Y, H, C, p_P)
    if VALUES:
        do_XP = part_of_heads(do_ptr, t * H, h_X, H, D, p_P)
        do_YP = part_of_heads(do_ptr, t * H, h_Y, H, D, p_P)
    for j in range(0, J, B):
        j_B = t * J + j + tl.arange(0, B)
        index_B = tl.load(index_ptr + j_B)
        at_B1 = (j_B * W)[:, None]
        dkv_BP = tl.dot(tl.load(ds_ptr + at_B1 + h_X[None, :]), q_XP)
        dkv_BP = tl.dot(tl.load(ds_ptr + at_B1 + h_Y[None, :]), q_YP, dkv_BP)
        if VALUES:
            dkv_BP = tl.dot(tl.load(p_ptr + at_B1 + h_X[None, :]), do_XP, dkv_BP)
            dkv_BP = tl.dot(tl.load(p_ptr + at_B1 + h_Y[None, :]), do_YP, dkv_BP)
        row_B1 = (tl.maximum(index_B, 0).to(tl.int64) * C)[:, None]
        tl.atomic_add(dkv_ptr + row_B1 + p_P[None, :], dkv_BP, mask=(index_B >= 0)[:, None], sem="relaxed")


def add_to_keys(
    p_TJW: torch.Tensor,
    ds_TJW: torch.Tensor,
    q_THC: torch.Tensor,
    do_THD: torch.Tensor,
    index_TJ: torch.Tensor,
    heads: Parts,
    dkv_SC: torch.Tensor,
) -> None:
    """Add the shares of all queries to *dkv_SC*, in fp32: latent channels `CHANNELS` at a time, then the rope's."""
    (T, H, C), J, D = q_THC.shape, index_TJ.shape[1], do_THD.shape[2]
    if on_hopper(q_THC, D, J) and heads.programs == 1:
        from kernels.sparse_scatter_hopper import add_shares

        add_shares(p_TJW, ds_TJW, q_THC, do_THD, index_TJ, hopper_widths(heads), dkv_SC)
        return
    P = min(CHANNELS, D)
    sides = {"J": J, "C": C, "D": D, "B": min(KEYS, J), "X": heads.x, "Y": heads.y} | LAUNCH
    arguments = (p_TJW, ds_TJW, q_THC, do_THD, index_TJ, dkv_SC, H, heads.width, heads.programs)
    for first, width, slices in ((0, P, D // P), (D, C - D, 1)):
        grid = (T * heads.programs * slices,)
        _add[grid](*arguments, first, P=width, SLICES=slices, VALUES=first < D, **sides)
