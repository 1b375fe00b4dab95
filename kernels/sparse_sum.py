"""Sums over each query's chosen keys, by a weight for each head: outputs from powers of two, gradients of queries.

    out(t, h) = sum over j of weight(t, j, h) kv(index(t, j))

A program sums P channels of one query's keys for all heads, which are the columns, and walks the keys with the next
steps on their way. Weights that are powers of two below references of their own are brought to the largest reference
first; where all references of a program's heads agree, as nearly always, they are multiplied as they were read.

Legend: T queries, H heads, J chosen keys, B keys of one step, C channels of a key, E those of a result, P those of one
program, X and Y the two parts of a program's heads, W the heads of all programs, N tiles of a query's keys, each with
references of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.sparse_tiles import Parts

KEYS = 64
CHANNELS = 128
LAUNCH = {"num_warps": 4, "num_stages": 5}


@triton.jit
def _walk(weight_ptr, kv_ptr, index_ptr, largest_ptr, W, largest_X, largest_Y, h_X, h_Y, p_P, J: tl.constexpr,
          C: tl.constexpr, N: tl.constexpr, B: tl.constexpr, SCALED: tl.constexpr):  # fmt: skip
    """Sums of P channels, whose rows they are, for both parts of heads; SCALED: weights brought to one reference."""
    P: tl.constexpr = p_P.shape[0]
    x_PX = tl.zeros([P, h_X.shape[0]], dtype=tl.float32)
    y_PY = tl.zeros([P, h_Y.shape[0]], dtype=tl.float32)
    for j in range(0, J, B):
        j_B = j + tl.arange(0, B)
        index_B = tl.load(index_ptr + j_B)
        row_B1 = (tl.maximum(index_B, 0).to(tl.int64) * C)[:, None]
        kv_BP = tl.load(kv_ptr + row_B1 + p_P[None, :], mask=(index_B >= 0)[:, None], other=0.0)
        x_BX = tl.load(weight_ptr + (j_B * W)[:, None] + h_X[None, :])
        y_BY = tl.load(weight_ptr + (j_B * W)[:, None] + h_Y[None, :])
        if SCALED:
            at = largest_ptr + j // (J // N) * W
            x_BX = (x_BX * tl.exp2(tl.load(at + h_X) - largest_X)[None, :]).to(kv_BP.dtype)
            y_BY = (y_BY * tl.exp2(tl.load(at + h_Y) - largest_Y)[None, :]).to(kv_BP.dtype)
        x_PX = tl.dot(tl.trans(kv_BP), x_BX, x_PX)
        y_PY = tl.dot(tl.trans(kv_BP), y_BY, y_PY)
    return x_PX, y_PY


@triton.jit
def _reference(largest_ptr, sum_ptr, W, h_X, N: tl.constexpr):
    """(largest reference of each head, whether any other is smaller, sum of the head's powers below the largest)."""
    at_NX = (tl.arange(0, N) * W)[:, None] + h_X[None, :]
    largest_NX = tl.load(largest_ptr + at_NX)
    largest_X = tl.max(largest_NX, 0)
    sum_X = tl.sum(tl.load(sum_ptr + at_NX) * tl.exp2(largest_NX - largest_X[None, :]), 0)
    return largest_X, tl.max(tl.where(largest_NX < largest_X[None, :], 1, 0)), tl.where(sum_X > 0, sum_X, 1.0)


@triton.jit
def _store(out_ptr, at_X, here_X, p_P, x_PX):
    at_PX = out_ptr + at_X[None, :] + p_P[:, None]
    tl.store(at_PX, x_PX.to(out_ptr.dtype.element_ty), mask=here_X[None, :])


@triton.jit
def _sum(weight_ptr, kv_ptr, index_ptr, out_ptr, H, W, programs, first, J: tl.constexpr, C: tl.constexpr,
         E: tl.constexpr, P: tl.constexpr, B: tl.constexpr, X: tl.constexpr, Y: tl.constexpr,
         SLICES: tl.constexpr):  # fmt: skip
    """Channels *first* and on, P a program and SLICES times as many in all."""
    piece, t = tl.program_id(0) % SLICES, (tl.program_id(0) // SLICES // programs).to(tl.int64)
    h_X = tl.program_id(0) // SLICES % programs * (X + Y) + tl.arange(0, X)
    h_Y = tl.program_id(0) // SLICES % programs * (X + Y) + X + tl.arange(0, Y)
    p_P = first + piece * P + tl.arange(0, P)
    x_PX, y_PY = _walk(weight_ptr + t * J * W, kv_ptr, index_ptr + t * J, weight_ptr, W, h_X, h_Y, h_X, h_Y, p_P, J, C,
                       1, B, False)  # fmt: skip
    _store(out_ptr, (t * H + h_X) * E, h_X < H, p_P, x_PX)
    _store(out_ptr, (t * H + h_Y) * E, h_Y < H, p_P, y_PY)


@triton.jit
def _mean(power_ptr, kv_ptr, index_ptr, largest_ptr, sum_ptr, out_ptr, lse_ptr, H, W, programs, J: tl.constexpr,
          C: tl.constexpr, E: tl.constexpr, N: tl.constexpr, P: tl.constexpr, B: tl.constexpr, X: tl.constexpr,
          Y: tl.constexpr):  # fmt: skip
    """P channels by powers of two over their sum, and the log to base 2 of that sum."""
    SLICES: tl.constexpr = E // P
    piece, t = tl.program_id(0) % SLICES, (tl.program_id(0) // SLICES // programs).to(tl.int64)
    h_X = tl.program_id(0) // SLICES % programs * (X + Y) + tl.arange(0, X)
    h_Y = tl.program_id(0) // SLICES % programs * (X + Y) + X + tl.arange(0, Y)
    p_P = piece * P + tl.arange(0, P)
    largest_ptr += t * N * W
    largest_X, unlike_x, sum_X = _reference(largest_ptr, sum_ptr + t * N * W, W, h_X, N)
    largest_Y, unlike_y, sum_Y = _reference(largest_ptr, sum_ptr + t * N * W, W, h_Y, N)
    power_ptr += t * J * W
    index_ptr += t * J
    if unlike_x + unlike_y > 0:
        x_PX, y_PY = _walk(power_ptr, kv_ptr, index_ptr, largest_ptr, W, largest_X, largest_Y, h_X, h_Y, p_P, J, C, N,
                           B, True)  # fmt: skip
    else:
        x_PX, y_PY = _walk(power_ptr, kv_ptr, index_ptr, largest_ptr, W, largest_X, largest_Y, h_X, h_Y, p_P, J, C, N,
                           B, False)  # fmt: skip
    _store(out_ptr, (t * H + h_X) * E, h_X < H, p_P, x_PX * (1.0 / sum_X)[None, :])
    _store(out_ptr, (t * H + h_Y) * E, h_Y < H, p_P, y_PY * (1.0 / sum_Y)[None, :])
    if piece == 0:
        tl.store(lse_ptr + t * H + h_X, largest_X + tl.log2(sum_X), mask=h_X < H)
        tl.store(lse_ptr + t * H + h_Y, largest_Y + tl.log2(sum_Y), mask=h_Y < H)


def mean_of_values(
    power_TJW: torch.Tensor,
    largest_TNW: torch.Tensor,
    sum_TNW: torch.Tensor,
    kv_SC: torch.Tensor,
    index_TJ: torch.Tensor,
    heads: Parts,
    o_THD: torch.Tensor,
    lse_TH: torch.Tensor,
) -> None:
    """Write the sums by powers of two, over the powers' sum, and the log to base 2 of the latter."""
    (T, H, D), N = o_THD.shape, largest_TNW.shape[1]
    J, P = index_TJ.shape[1], min(CHANNELS, D)
    grid = (T * heads.programs * (D // P),)
    sides = {"J": J, "C": kv_SC.shape[1], "E": D, "N": N, "P": P, "B": min(KEYS, J // N), "X": heads.x, "Y": heads.y}
    tensors = (power_TJW, kv_SC, index_TJ, largest_TNW, sum_TNW, o_THD, lse_TH)
    _mean[grid](*tensors, H, heads.width, heads.programs, **sides, **LAUNCH)


def sum_of_keys(
    weight_TJW: torch.Tensor,
    kv_SC: torch.Tensor,
    index_TJ: torch.Tensor,
    heads: Parts,
    latent: int,
    out_THC: torch.Tensor,
) -> None:
    """Write the sums of whole keys by *weight_TJW*: latent channels `CHANNELS` at a time, then those of the rope."""
    T, H, C = out_THC.shape
    J, P = index_TJ.shape[1], min(CHANNELS, latent)
    sides = {"J": J, "C": C, "E": C, "B": min(KEYS, J), "X": heads.x, "Y": heads.y}
    for first, width, slices in ((0, P, latent // P), (latent, C - latent, 1)):
        grid = (T * heads.programs * slices,)
        arguments = (weight_TJW, kv_SC, index_TJ, out_THC, H, heads.width, heads.programs, first)
        _sum[grid](*arguments, P=width, SLICES=slices, **sides, **LAUNCH)
