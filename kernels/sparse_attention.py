"""Attention of each query to its own chosen keys, in MLA's absorbed layout.

All heads share one key of *latent* + *rope* channels, of which the first *latent* are the value too:

    o(t, h) = sum over j of p(t, h, j) kv(index(t, j))[:latent],  p = softmax over j of scale q(t, h) . kv(index(t, j))

Two matrix products, the next steps of each on their way while one is multiplied: this one scores B keys of one query
and writes the powers of two of all heads to memory; `kernels.sparse_sum` sums the values by them. Gathered keys are the
rows of both, heads their columns, in two parts, so that 96 heads waste nothing and each product gathers a key once for
all of them. Powers refer to the largest score of the query's first B keys, which others may exceed by as much as the
type holds; keys that exceed it by more refer to their own largest, and are brought to the query's largest between the
two. Queries are taken as many at a time as `kernels.sparse_tiles` has workspace for. An index of -1 is no key; a query
with none gets zeros. On a Hopper GPU `kernels.sparse_attention_hopper` does all of it in one kernel.

Legend: T queries, H heads, J chosen keys, B keys of one program, C channels, D those of the latent, K those of one
step, X and Y the two parts of a program's heads, W the heads of all programs, N = J / B.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.sparse_sum import weighted_sum
from kernels.sparse_tiles import LOG2_E, SMALLEST_PART, Parts, batch, on_hopper, part_of_heads, parts, step

KEYS = 128
LAUNCH = {"num_warps": 4, "num_stages": 3}
LOWEST = tl.constexpr(-1e30)
"""A maximum below all scores that is still a number, so that keys that are none change nothing."""
EXCESS_LOG2 = {torch.float16: 8}
"""How far a score may exceed its reference before it gets one of its own, to base 2; 64 in types of wider range."""


@triton.jit
def _store_powers(score_BX, here_B1, power_ptr, largest_ptr, sum_ptr, at_B1, at, first, h_X, EXCESS: tl.constexpr,
                  FIRST: tl.constexpr):  # fmt: skip
    """Write the powers of two of scores below their reference, that reference, and the sum of each head's powers."""
    score_BX = tl.where(here_B1, score_BX, -float("inf"))
    largest_X = tl.maximum(tl.max(score_BX, 0), LOWEST)
    if not FIRST:
        reference_X = tl.load(largest_ptr + first + h_X)
        largest_X = tl.where(largest_X > reference_X + EXCESS, largest_X, reference_X)
    power_BX = tl.exp2(score_BX - largest_X[None, :])
    tl.store(power_ptr + at_B1 + h_X[None, :], power_BX.to(power_ptr.dtype.element_ty))
    tl.store(largest_ptr + at + h_X, largest_X)
    tl.store(sum_ptr + at + h_X, tl.sum(power_BX, 0))


@triton.jit
def _powers(q_ptr, kv_ptr, index_ptr, power_ptr, largest_ptr, sum_ptr, H, W, programs, scale_log2, J: tl.constexpr,
            C: tl.constexpr, K: tl.constexpr, B: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, EXCESS: tl.constexpr,
            FIRST: tl.constexpr):  # fmt: skip
    """Powers of two of one query's B keys; FIRST: of its first B keys, else of others, which refer to the first."""
    N: tl.constexpr = J // B
    TILES: tl.constexpr = 1 if FIRST else N - 1
    tile = tl.program_id(0) % TILES + (0 if FIRST else 1)
    t = (tl.program_id(0) // TILES // programs).to(tl.int64)
    h_X = tl.program_id(0) // TILES % programs * (X + Y) + tl.arange(0, X)
    h_Y = tl.program_id(0) // TILES % programs * (X + Y) + X + tl.arange(0, Y)
    j_B = t * J + tile * B + tl.arange(0, B)
    index_B = tl.load(index_ptr + j_B)
    here_B1 = (index_B >= 0)[:, None]
    row_B1 = (tl.maximum(index_B, 0).to(tl.int64) * C)[:, None]
    x_BX, y_BY = tl.zeros([B, X], dtype=tl.float32), tl.zeros([B, Y], dtype=tl.float32)
    for k in range(0, C, K):
        k_K = k + tl.arange(0, K)
        kv_BK = tl.load(kv_ptr + row_B1 + k_K[None, :], mask=here_B1, other=0.0)
        x_BX = tl.dot(kv_BK, tl.trans(part_of_heads(q_ptr, t * H, h_X, H, C, k_K)), x_BX)
        y_BY = tl.dot(kv_BK, tl.trans(part_of_heads(q_ptr, t * H, h_Y, H, C, k_K)), y_BY)
    at, first, at_B1 = (t * N + tile) * W, t * N * W, (j_B * W)[:, None]
    _store_powers(x_BX * scale_log2, here_B1, power_ptr, largest_ptr, sum_ptr, at_B1, at, first, h_X, EXCESS, FIRST)
    _store_powers(y_BY * scale_log2, here_B1, power_ptr, largest_ptr, sum_ptr, at_B1, at, first, h_Y, EXCESS, FIRST)


@triton.jit
def _settle(power_ptr, largest_ptr, sum_ptr, per_ptr, lse_ptr, H, W, J: tl.constexpr, N: tl.constexpr,
            G: tl.constexpr):  # fmt: skip
    """Bring G heads' powers of one query to their largest reference, where another differs, and add their sums up."""
    t, B = tl.program_id(0).to(tl.int64), J // N
    h_G = tl.program_id(1) * G + tl.arange(0, G)
    at_NG = t * N * W + (tl.arange(0, N) * W)[:, None] + h_G[None, :]
    each_NG = tl.load(largest_ptr + at_NG)
    largest_G = tl.max(each_NG, 0)
    if tl.max(tl.where(each_NG < largest_G[None, :], 1, 0)) > 0:
        for j in range(J):
            below_G = tl.load(largest_ptr + (t * N + j // B) * W + h_G) - largest_G
            at_G = power_ptr + (t * J + j) * W + h_G
            tl.store(at_G, (tl.load(at_G) * tl.exp2(below_G)).to(power_ptr.dtype.element_ty))
    sum_G = tl.sum(tl.load(sum_ptr + at_NG) * tl.exp2(each_NG - largest_G[None, :]), 0)
    sum_G = tl.where(sum_G > 0, sum_G, 1.0)
    tl.store(per_ptr + t * W + h_G, 1.0 / sum_G)
    tl.store(lse_ptr + t * H + h_G, largest_G + tl.log2(sum_G), mask=h_G < H)


def powers(
    q_THC: torch.Tensor, kv_SC: torch.Tensor, index_TJ: torch.Tensor, heads: Parts, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(powers of two [T, J, W], their references and their sums, both [T, N, W])."""
    (T, H, C), J = q_THC.shape, index_TJ.shape[1]
    B, W = min(KEYS, J), heads.width
    power_TJW = q_THC.new_empty(T, J, W)
    largest_TNW, sum_TNW = q_THC.new_empty(2, T, J // B, W, dtype=torch.float32)
    arguments = (q_THC, kv_SC, index_TJ, power_TJW, largest_TNW, sum_TNW, H, W, heads.programs, scale * LOG2_E)
    sides = {"J": J, "C": C, "K": step(C), "B": B, "X": heads.x, "Y": heads.y}
    excess = EXCESS_LOG2.get(q_THC.dtype, 64)
    _powers[(T * heads.programs,)](*arguments, **sides, EXCESS=excess, FIRST=True, **LAUNCH)
    if J > B:
        _powers[(T * heads.programs * (J // B - 1),)](*arguments, **sides, EXCESS=excess, FIRST=False, **LAUNCH)
    return power_TJW, largest_TNW, sum_TNW


def sparse_forward(
    q_THC: torch.Tensor, kv_SC: torch.Tensor, index_TJ: torch.Tensor, latent: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o [T, H, latent], log to base 2 of each head's sum of exponentials [T, H]) of contiguous inputs."""
    T, H, _ = q_THC.shape
    o_THD = q_THC.new_empty(T, H, latent)
    lse_TH = q_THC.new_empty(T, H, dtype=torch.float32)
    if on_hopper(kv_SC, latent, index_TJ.shape[1]):
        from kernels.sparse_attention_hopper import attend

        attend(q_THC, kv_SC, index_TJ, scale, o_THD, lse_TH)
        return o_THD, lse_TH
    heads = parts(H)
    per_TW = q_THC.new_empty(T, heads.width, dtype=torch.float32)
    rows = batch(T, heads, index_TJ.shape[1], 1, q_THC.element_size())
    for q, index, o, lse, per in zip(*(x.split(rows) for x in (q_THC, index_TJ, o_THD, lse_TH, per_TW)), strict=True):
        power, largest, sums = powers(q, kv_SC, index, heads, scale)
        grid, sides = (len(q), heads.width // SMALLEST_PART), {"J": index.shape[1], "N": largest.shape[1]}
        _settle[grid](power, largest, sums, per, lse, H, heads.width, **sides, G=SMALLEST_PART)
        weighted_sum(power, kv_SC, index, heads, latent, o, per)
    return o_THD, lse_TH
