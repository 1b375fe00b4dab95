"""Attention of each query to its own chosen keys, in MLA's absorbed layout.

All heads share one key of *latent* + *rope* channels, of which the first *latent* are the value too:

    o(t, h) = sum over j of p(t, h, j) kv(index(t, j))[:latent],  p = softmax over j of scale q(t, h) . kv(index(t, j))

One program takes up to 32 heads of one query and walks its keys, which are the rows of the scores and the columns of
the sum, so that 96 heads waste nothing. 128 keys, the rows of eight warps, leave no room for a second step in shared
memory: a step is gathered, then multiplied. Latent channels come in four parts. An index of -1 is no key; a query with
none gets zeros.

Legend: T queries, H heads, J chosen keys, B keys of one step, G heads of one program, P a quarter of the latent
channels, R rope channels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

HEADS = 32
KEYS = 128
LAUNCH = {"num_warps": 8, "num_stages": 1}
LOG2_E = 1.4426950408889634
LOWEST = tl.constexpr(-1e30)
"""A maximum below all scores that is still a number, so that a step without keys changes nothing."""


@triton.jit
def four(ptr, at_N1, here_N1, P: tl.constexpr):
    """Four neighbouring parts of P channels of some rows."""
    at_NP = ptr + at_N1 + tl.arange(0, P)[None, :]
    return (
        tl.load(at_NP, mask=here_N1, other=0.0),
        tl.load(at_NP + P, mask=here_N1, other=0.0),
        tl.load(at_NP + 2 * P, mask=here_N1, other=0.0),
        tl.load(at_NP + 3 * P, mask=here_N1, other=0.0),
    )


@triton.jit
def by_four(left, right, sum_BG):
    """Add the products of the rows of both, over the channels of all four parts."""
    for part in tl.static_range(4):
        sum_BG = tl.dot(left[part], tl.trans(right[part]), sum_BG)
    return sum_BG


@triton.jit
def store_four(ptr, at_G, here_G, P: tl.constexpr, x0_PG, x1_PG, x2_PG, x3_PG):
    """Write four parts of P channels of some columns as rows."""
    at_PG = ptr + at_G[None, :] + tl.arange(0, P)[:, None]
    tl.store(at_PG, x0_PG.to(ptr.dtype.element_ty), mask=here_G[None, :])
    tl.store(at_PG + P, x1_PG.to(ptr.dtype.element_ty), mask=here_G[None, :])
    tl.store(at_PG + 2 * P, x2_PG.to(ptr.dtype.element_ty), mask=here_G[None, :])
    tl.store(at_PG + 3 * P, x3_PG.to(ptr.dtype.element_ty), mask=here_G[None, :])


@triton.jit
def _forward(q_ptr, kv_ptr, index_ptr, o_ptr, lse_ptr, H, scale_log2, J: tl.constexpr, P: tl.constexpr,
             R: tl.constexpr, G: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Outputs of G heads of one query, and the log to base 2 of their sums of exponentials."""
    D: tl.constexpr = 4 * P
    groups = tl.cdiv(H, G)
    t = (tl.program_id(0) // groups).to(tl.int64)
    h_G = tl.program_id(0) % groups * G + tl.arange(0, G)
    here_G = h_G < H
    b_B, r_R = tl.arange(0, B), D + tl.arange(0, R)
    row_G = t * H + h_G
    q = four(q_ptr, (row_G * (D + R))[:, None], here_G[:, None], P)
    q_GR = tl.load(q_ptr + (row_G * (D + R))[:, None] + r_R[None, :], mask=here_G[:, None], other=0.0)
    o0_PG, o1_PG = tl.zeros([P, G], dtype=tl.float32), tl.zeros([P, G], dtype=tl.float32)
    o2_PG, o3_PG = tl.zeros([P, G], dtype=tl.float32), tl.zeros([P, G], dtype=tl.float32)
    max_G, sum_G = tl.full([G], LOWEST, dtype=tl.float32), tl.zeros([G], dtype=tl.float32)
    for j in range(0, J, B):
        index_B = tl.load(index_ptr + t * J + j + b_B)
        here_B1 = (index_B >= 0)[:, None]
        row_B1 = (tl.maximum(index_B, 0).to(tl.int64) * (D + R))[:, None]
        kv = four(kv_ptr, row_B1, here_B1, P)
        kv_BR = tl.load(kv_ptr + row_B1 + r_R[None, :], mask=here_B1, other=0.0)
        score_BG = tl.dot(kv_BR, tl.trans(q_GR), by_four(kv, q, tl.zeros([B, G], dtype=tl.float32))) * scale_log2
        score_BG = tl.where(here_B1, score_BG, -float("inf"))
        higher_G = tl.maximum(max_G, tl.max(score_BG, 0))
        p_BG = tl.exp2(score_BG - higher_G[None, :])
        shrink_G = tl.exp2(max_G - higher_G)
        sum_G = sum_G * shrink_G + tl.sum(p_BG, 0)
        p_BG = p_BG.to(kv_BR.dtype)
        o0_PG = tl.dot(tl.trans(kv[0]), p_BG, o0_PG * shrink_G[None, :])
        o1_PG = tl.dot(tl.trans(kv[1]), p_BG, o1_PG * shrink_G[None, :])
        o2_PG = tl.dot(tl.trans(kv[2]), p_BG, o2_PG * shrink_G[None, :])
        o3_PG = tl.dot(tl.trans(kv[3]), p_BG, o3_PG * shrink_G[None, :])
        max_G = higher_G
    some_G = tl.where(sum_G > 0, sum_G, 1.0)
    per_G = 1.0 / some_G
    store_four(o_ptr, row_G * D, here_G, P, o0_PG * per_G[None, :], o1_PG * per_G[None, :], o2_PG * per_G[None, :],
               o3_PG * per_G[None, :])  # fmt: skip
    tl.store(lse_ptr + row_G, max_G + tl.log2(some_G), mask=here_G)


def sparse_forward(
    q_THC: torch.Tensor, kv_SC: torch.Tensor, index_TJ: torch.Tensor, latent: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o [T, H, latent], log to base 2 of each head's sum of exponentials [T, H]) of contiguous inputs."""
    (T, H, channels), J = q_THC.shape, index_TJ.shape[1]
    G = min(HEADS, triton.next_power_of_2(H))
    o_THD = q_THC.new_empty(T, H, latent)
    lse_TH = q_THC.new_empty(T, H, dtype=torch.float32)
    sides = {"J": J, "P": latent // 4, "R": channels - latent, "G": G, "B": min(KEYS, J)}
    grid = (triton.cdiv(H, G) * T,)
    _forward[grid](q_THC, kv_SC, index_TJ, o_THD, lse_TH, H, scale * LOG2_E, **sides, **LAUNCH)
    return o_THD, lse_TH


def check(q_THC: torch.Tensor, kv_SC: torch.Tensor, index_TJ: torch.Tensor, latent: int) -> None:
    """Raise a ValueError that says which of the inputs cannot be tiled or do not go together."""
    (T, _, channels), J = q_THC.shape, index_TJ.shape[1]
    sides = {"latent": latent, "rope": channels - latent, "chosen keys": J}
    wrong = [f"{name} is {side}" for name, side in sides.items() if side < 1 or side & (side - 1)]
    if len(index_TJ) != T or kv_SC.shape[1] != channels:
        wrong.append(f"q is {tuple(q_THC.shape)}, kv is {tuple(kv_SC.shape)}, index is {tuple(index_TJ.shape)}")
    if wrong:
        raise ValueError("; ".join(wrong))
