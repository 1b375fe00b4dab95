"""Gradients of `kernels.sparse_attention`.

Three kernels. This one scores B keys of one query again, multiplies them by the gradient of the output too, and writes
the probabilities and the gradients of the scores of all heads to memory. `kernels.sparse_sum` sums the keys by the
latter, which are the gradients of the query; `kernels.sparse_scatter` adds each query's share to those of its keys. On
a Hopper GPU `kernels.sparse_gradients_hopper` scores up to 128 heads.

Legend: T queries, H heads, J chosen keys, B keys of one program, C channels, D those of the latent, K those of one
step, X and Y the two parts of a program's heads, W the heads of all programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.sparse_attention import sparse_forward
from kernels.sparse_scatter import add_to_keys
from kernels.sparse_sum import weighted_sum
from kernels.sparse_tiles import LOG2_E, Parts, batch, check, hopper_widths, on_hopper, part_of_heads, parts_on, step

KEYS = 64
LAUNCH = {"num_warps": 4, "num_stages": 3}


@triton.jit
def _along(o_ptr, do_ptr, along_ptr, D: tl.constexpr):
    """Dot product of one head's output with its gradient."""
    d_D = tl.program_id(0).to(tl.int64) * D + tl.arange(0, D)
    product_D = tl.load(o_ptr + d_D).to(tl.float32) * tl.load(do_ptr + d_D).to(tl.float32)
    tl.store(along_ptr + tl.program_id(0), tl.sum(product_D, 0))


@triton.jit
def _store_gradients(score_BX, dp_BX, here_B1, lse_ptr, along_ptr, p_ptr, ds_ptr, at_B1, at, h_X, H, scale, scale_log2):
    """Write probabilities and the gradients of scores; both are zero for keys that are none and heads past the last."""
    lse_X = tl.load(lse_ptr + at + h_X, mask=h_X < H, other=0.0)
    along_X = tl.load(along_ptr + at + h_X, mask=h_X < H, other=0.0)
    p_BX = tl.where(here_B1 & (h_X < H)[None, :], tl.exp2(score_BX * scale_log2 - lse_X[None, :]), 0.0)
    ds_BX = p_BX * (dp_BX - along_X[None, :]) * scale
    tl.store(p_ptr + at_B1 + h_X[None, :], p_BX.to(p_ptr.dtype.element_ty))
    tl.store(ds_ptr + at_B1 + h_X[None, :], ds_BX.to(ds_ptr.dtype.element_ty))


@triton.jit
def _score_gradients(q_ptr, kv_ptr, index_ptr, do_ptr, lse_ptr, along_ptr, p_ptr, ds_ptr, H, W, programs, scale,
                     scale_log2, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
                     B: tl.constexpr, X: tl.constexpr, Y: tl.constexpr):  # fmt: skip
    """Probabilities of one query's B keys and the gradients of their scores."""
    TILES: tl.constexpr = J // B
    t = (tl.program_id(0) // TILES // programs).to(tl.int64)
    h_X = tl.program_id(0) // TILES % programs * (X + Y) + tl.arange(0, X)
    h_Y = tl.program_id(0) // TILES % programs * (X + Y) + X + tl.arange(0, Y)
    j_B = t * J + tl.program_id(0) % TILES * B + tl.arange(0, B)
    index_B = tl.load(index_ptr + j_B)
    here_B1 = (index_B >= 0)[:, None]
    row_B1 = (tl.maximum(index_B, 0).to(tl.int64) * C)[:, None]
    x_BX, y_BY = tl.zeros([B, X], dtype=tl.float32), tl.zeros([B, Y], dtype=tl.float32)
    dx_BX, dy_BY = tl.zeros([B, X], dtype=tl.float32), tl.zeros([B, Y], dtype=tl.float32)
    for k in range(0, D, K):
        k_K = k + tl.arange(0, K)
        kv_BK = tl.load(kv_ptr + row_B1 + k_K[None, :], mask=here_B1, other=0.0)
        x_BX = tl.dot(kv_BK, tl.trans(part_of_heads(q_ptr, t * H, h_X, H, C, k_K)), x_BX)
        y_BY = tl.dot(kv_BK, tl.trans(part_of_heads(q_ptr, t * H, h_Y, H, C, k_K)), y_BY)
        dx_BX = tl.dot(kv_BK, tl.trans(part_of_heads(do_ptr, t * H, h_X, H, D, k_K)), dx_BX)
        dy_BY = tl.dot(kv_BK, tl.trans(part_of_heads(do_ptr, t * H, h_Y, H, D, k_K)), dy_BY)
    r_R = D + tl.arange(0, R)
    kv_BR = tl.load(kv_ptr + row_B1 + r_R[None, :], mask=here_B1, other=0.0)
    x_BX = tl.dot(kv_BR, tl.trans(part_of_heads(q_ptr, t * H, h_X, H, C, r_R)), x_BX)
    y_BY = tl.dot(kv_BR, tl.trans(part_of_heads(q_ptr, t * H, h_Y, H, C, r_R)), y_BY)
    at_B1 = (j_B * W)[:, None]
    _store_gradients(x_BX, dx_BX, here_B1, lse_ptr, along_ptr, p_ptr, ds_ptr, at_B1, t * H, h_X, H, scale, scale_log2)
    _store_gradients(y_BY, dy_BY, here_B1, lse_ptr, along_ptr, p_ptr, ds_ptr, at_B1, t * H, h_Y, H, scale, scale_log2)


def score_gradients(
    q_THC: torch.Tensor,
    kv_SC: torch.Tensor,
    index_TJ: torch.Tensor,
    o_THD: torch.Tensor,
    lse_TH: torch.Tensor,
    do_THD: torch.Tensor,
    heads: Parts,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(probabilities, gradients of the scores before they are scaled), both [T, J, W]."""
    (T, H, C), J, D = q_THC.shape, index_TJ.shape[1], o_THD.shape[2]
    p_TJW, ds_TJW = q_THC.new_empty(2, T, J, heads.width)
    along_TH = torch.empty_like(lse_TH)
    _along[(T * H,)](o_THD, do_THD, along_TH, D=D)
    if on_hopper(kv_SC, D, J) and heads.programs == 1:
        from kernels import sparse_gradients_hopper

        known = (lse_TH, along_TH, hopper_widths(heads), scale, p_TJW, ds_TJW)
        sparse_gradients_hopper.score_gradients(q_THC, kv_SC, index_TJ, do_THD, *known)
        return p_TJW, ds_TJW
    B = min(KEYS, J)
    tensors = (q_THC, kv_SC, index_TJ, do_THD, lse_TH, along_TH, p_TJW, ds_TJW)
    sides = {"J": J, "C": C, "D": D, "K": step(D), "R": C - D, "B": B, "X": heads.x, "Y": heads.y}
    grid = (T * heads.programs * (J // B),)
    _score_gradients[grid](*tensors, H, heads.width, heads.programs, scale, scale * LOG2_E, **sides, **LAUNCH)
    return p_TJW, ds_TJW


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
    heads = parts_on(kv_SC, q_THC.shape[1], o_THD.shape[2], index_TJ.shape[1])
    dq_THC = torch.empty_like(q_THC)
    dkv_SC = torch.zeros_like(kv_SC, dtype=torch.float32)
    rows = batch(len(q_THC), heads, index_TJ.shape[1], 2, q_THC.element_size())
    each = zip(*(x.split(rows) for x in (q_THC, index_TJ, o_THD, lse_TH, do_THD, dq_THC)), strict=True)
    for q, index, o, lse, do, dq in each:
        p, ds = score_gradients(q, kv_SC, index, o, lse, do, heads, scale)
        weighted_sum(ds, kv_SC, index, heads, o.shape[2], dq)
        add_to_keys(p, ds, q, do, index, heads, dkv_SC)
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

    Differentiable in q and kv. Latent, rope and J are powers of two, on a GPU 64, 16 and 16 at least; J is 128 at least
    where the kernels for Hopper run.
    """
    check(q_THC, kv_SC, index_TJ, latent)
    return _SparseAttention.apply(q_THC.contiguous(), kv_SC.contiguous(), index_TJ.contiguous(), latent, scale)
