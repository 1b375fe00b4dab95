"""Gradients of `kernels.sparse_attention`: those of q stay in a program, those of kv are added to fp32 by atomics.

One program takes up to 32 heads of one query and computes the scores again from the log of their sum. Keys are the rows
of what it computes, or the columns for the gradient of the query, and latent channels come in four parts, so that no
product is larger than the registers.

Legend: T queries, H heads, J chosen keys, B keys of one step, G heads of one program, P a quarter of the latent
channels, R rope channels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.sparse_attention import LOG2_E, by_four, check, four, sparse_forward, store_four

KEYS = 128
HEADS = 32
LAUNCH = {"num_warps": 8, "num_stages": 1}


@triton.jit
def _backward(q_ptr, kv_ptr, index_ptr, o_ptr, lse_ptr, do_ptr, dq_ptr, dkv_ptr, H, scale, scale_log2, J: tl.constexpr,
              P: tl.constexpr, R: tl.constexpr, G: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Gradients of G heads of one query, and their share of those of its keys."""
    D: tl.constexpr = 4 * P
    groups = tl.cdiv(H, G)
    t = (tl.program_id(0) // groups).to(tl.int64)
    h_G = tl.program_id(0) % groups * G + tl.arange(0, G)
    b_B, p_P, r_R = tl.arange(0, B), tl.arange(0, P), D + tl.arange(0, R)
    here_G = h_G < H
    q_G, o_G = (t * H + h_G) * (D + R), (t * H + h_G) * D
    do = four(do_ptr, o_G[:, None], here_G[:, None], P)
    o = four(o_ptr, o_G[:, None], here_G[:, None], P)
    along_G = tl.zeros([G], dtype=tl.float32)
    for part in tl.static_range(4):
        along_G += tl.sum(o[part].to(tl.float32) * do[part].to(tl.float32), 1)
    q = four(q_ptr, q_G[:, None], here_G[:, None], P)
    q_GR = tl.load(q_ptr + q_G[:, None] + r_R[None, :], mask=here_G[:, None], other=0.0)
    lse_G = tl.load(lse_ptr + t * H + h_G, mask=here_G, other=0.0)
    dq0_PG, dq1_PG = tl.zeros([P, G], dtype=tl.float32), tl.zeros([P, G], dtype=tl.float32)
    dq2_PG, dq3_PG = tl.zeros([P, G], dtype=tl.float32), tl.zeros([P, G], dtype=tl.float32)
    dq_RG = tl.zeros([R, G], dtype=tl.float32)
    for j in range(0, J, B):
        index_B = tl.load(index_ptr + t * J + j + b_B)
        here_B1 = (index_B >= 0)[:, None]
        row_B1 = (tl.maximum(index_B, 0).to(tl.int64) * (D + R))[:, None]
        kv = four(kv_ptr, row_B1, here_B1, P)
        kv_BR = tl.load(kv_ptr + row_B1 + r_R[None, :], mask=here_B1, other=0.0)
        score_BG = tl.dot(kv_BR, tl.trans(q_GR), by_four(kv, q, tl.zeros([B, G], dtype=tl.float32)))
        p_BG = tl.where(here_B1 & here_G[None, :], tl.exp2(score_BG * scale_log2 - lse_G[None, :]), 0.0)
        dp_BG = by_four(kv, do, tl.zeros([B, G], dtype=tl.float32))
        ds_BG = (p_BG * (dp_BG - along_G[None, :]) * scale).to(kv_BR.dtype)
        p_BG = p_BG.to(kv_BR.dtype)
        dq0_PG = tl.dot(tl.trans(kv[0]), ds_BG, dq0_PG)
        dq1_PG = tl.dot(tl.trans(kv[1]), ds_BG, dq1_PG)
        dq2_PG = tl.dot(tl.trans(kv[2]), ds_BG, dq2_PG)
        dq3_PG = tl.dot(tl.trans(kv[3]), ds_BG, dq3_PG)
        dq_RG = tl.dot(tl.trans(kv_BR), ds_BG, dq_RG)
        for part in tl.static_range(4):
            dkv_BP = tl.dot(p_BG, do[part], tl.dot(ds_BG, q[part]))
            tl.atomic_add(dkv_ptr + row_B1 + part * P + p_P[None, :], dkv_BP, mask=here_B1, sem="relaxed")
        tl.atomic_add(dkv_ptr + row_B1 + r_R[None, :], tl.dot(ds_BG, q_GR), mask=here_B1, sem="relaxed")
    store_four(dq_ptr, q_G, here_G, P, dq0_PG, dq1_PG, dq2_PG, dq3_PG)
    tl.store(dq_ptr + q_G[None, :] + r_R[:, None], dq_RG.to(dq_ptr.dtype.element_ty), mask=here_G[None, :])


def gradients(
    q_THC: torch.Tensor,
    kv_SC: torch.Tensor,
    index_TJ: torch.Tensor,
    o_THD: torch.Tensor,
    lse_TH: torch.Tensor,
    do_THD: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(gradient of q, gradient of kv), both in the type of their inputs."""
    (T, H, channels), J, latent = q_THC.shape, index_TJ.shape[1], o_THD.shape[2]
    dq_THC = torch.empty_like(q_THC)
    dkv_SC = torch.zeros_like(kv_SC, dtype=torch.float32)
    G = min(HEADS, triton.next_power_of_2(H))
    sides = {"J": J, "P": latent // 4, "R": channels - latent, "G": G, "B": min(KEYS, J)}
    arguments = (q_THC, kv_SC, index_TJ, o_THD, lse_TH, do_THD, dq_THC, dkv_SC, H, scale, scale * LOG2_E)
    _backward[(triton.cdiv(H, G) * T,)](*arguments, **sides, **LAUNCH)
    return dq_THC, dkv_SC.to(kv_SC.dtype)


class _SparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q_THC, kv_SC, index_TJ, latent, scale):
        o_THD, lse_TH = sparse_forward(q_THC, kv_SC, index_TJ, latent, scale)
        ctx.save_for_backward(q_THC, kv_SC, index_TJ, o_THD, lse_TH)
        ctx.scale = scale
        return o_THD

    @staticmethod
    def backward(ctx, do_THD):
        dq_THC, dkv_SC = gradients(*ctx.saved_tensors, do_THD.contiguous(), ctx.scale)
        return dq_THC, dkv_SC, None, None, None


def sparse_attention(
    q_THC: torch.Tensor, kv_SC: torch.Tensor, index_TJ: torch.Tensor, latent: int, scale: float
) -> torch.Tensor:
    """[T, H, latent]: attention of q [T, H, latent + rope] to the rows of *kv_SC* that int32 *index_TJ* names.

    Differentiable in q and kv. Latent, rope and J are powers of two, 64, 16 and 16 at least on a GPU.
    """
    check(q_THC, kv_SC, index_TJ, latent)
    return _SparseAttention.apply(q_THC.contiguous(), kv_SC.contiguous(), index_TJ.contiguous(), latent, scale)
