"""Attention residuals: a sub-layer reads a mix of the block of residuals before it and the stream, each by its score.

    p = softmax_c(rms_norm(x_c) . v),    y = p_0 x_0 + p_1 x_1

v is the product of the norm's scale and the scoring vector, both taken as frozen. Of one block, as the first layers of
a model have it; both rows of a token stay in registers, so that each is read once either way.

Legend: T tokens, D width; x_TD the block (0) and the stream (1); kept_T4 scores and reciprocal roots of both.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.rms_norm import WIDEST_ROW, warps


@triton.jit
def _forward(x0_ptr, x1_ptr, scale_ptr, score_ptr, y_ptr, kept_ptr, D, epsilon, BLOCK_D: tl.constexpr):
    token, d_D = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_D)
    inside_D = d_D < D
    x0_D = tl.load(x0_ptr + token * D + d_D, mask=inside_D, other=0.0).to(tl.float32)
    x1_D = tl.load(x1_ptr + token * D + d_D, mask=inside_D, other=0.0).to(tl.float32)
    v_D = tl.load(scale_ptr + d_D, mask=inside_D, other=0.0).to(tl.float32)
    v_D *= tl.load(score_ptr + d_D, mask=inside_D, other=0.0).to(tl.float32)
    rstd0 = 1.0 / tl.sqrt(tl.sum(x0_D * x0_D, 0) / D + epsilon)
    rstd1 = 1.0 / tl.sqrt(tl.sum(x1_D * x1_D, 0) / D + epsilon)
    score0, score1 = tl.sum(x0_D * v_D, 0) * rstd0, tl.sum(x1_D * v_D, 0) * rstd1
    p0 = tl.sigmoid(score0 - score1)
    tl.store(y_ptr + token * D + d_D, (p0 * x0_D + (1.0 - p0) * x1_D).to(y_ptr.dtype.element_ty), mask=inside_D)
    tl.store(kept_ptr + token * 4, score0)
    tl.store(kept_ptr + token * 4 + 1, score1)
    tl.store(kept_ptr + token * 4 + 2, rstd0)
    tl.store(kept_ptr + token * 4 + 3, rstd1)


@triton.jit
def _backward(x0_ptr, x1_ptr, scale_ptr, score_ptr, kept_ptr, dy_ptr, dx0_ptr, dx1_ptr, D, BLOCK_D: tl.constexpr):
    """Of two candidates, the scores' gradients are each other's negative."""
    token, d_D = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_D)
    inside_D = d_D < D
    x0_D = tl.load(x0_ptr + token * D + d_D, mask=inside_D, other=0.0).to(tl.float32)
    x1_D = tl.load(x1_ptr + token * D + d_D, mask=inside_D, other=0.0).to(tl.float32)
    v_D = tl.load(scale_ptr + d_D, mask=inside_D, other=0.0).to(tl.float32)
    v_D *= tl.load(score_ptr + d_D, mask=inside_D, other=0.0).to(tl.float32)
    dy_D = tl.load(dy_ptr + token * D + d_D, mask=inside_D, other=0.0).to(tl.float32)
    score0, score1 = tl.load(kept_ptr + token * 4), tl.load(kept_ptr + token * 4 + 1)
    rstd0, rstd1 = tl.load(kept_ptr + token * 4 + 2), tl.load(kept_ptr + token * 4 + 3)
    p0 = tl.sigmoid(score0 - score1)
    dscore = p0 * (1.0 - p0) * (tl.sum(dy_D * x0_D, 0) - tl.sum(dy_D * x1_D, 0))
    dx0_D = p0 * dy_D + dscore * rstd0 * (v_D - x0_D * (rstd0 * score0 / D))
    dx1_D = (1.0 - p0) * dy_D - dscore * rstd1 * (v_D - x1_D * (rstd1 * score1 / D))
    tl.store(dx0_ptr + token * D + d_D, dx0_D.to(dx0_ptr.dtype.element_ty), mask=inside_D)
    tl.store(dx1_ptr + token * D + d_D, dx1_D.to(dx1_ptr.dtype.element_ty), mask=inside_D)


class _ResidualMix(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block_TD, stream_TD, scale_D, score_D, epsilon):
        T, D = stream_TD.shape
        y_TD, kept_T4 = torch.empty_like(stream_TD), stream_TD.new_empty(T, 4, dtype=torch.float32)
        side = triton.next_power_of_2(D)
        arguments = (block_TD, stream_TD, scale_D, score_D, y_TD, kept_T4, D, epsilon)
        _forward[(T,)](*arguments, BLOCK_D=side, num_warps=warps(side))
        ctx.save_for_backward(block_TD, stream_TD, scale_D, score_D, kept_T4)
        return y_TD

    @staticmethod
    def backward(ctx, dy_TD):
        (T, D), (dblock_TD, dstream_TD) = dy_TD.shape, (torch.empty_like(dy_TD) for _ in range(2))
        side = triton.next_power_of_2(D)
        arguments = (*ctx.saved_tensors, dy_TD.contiguous(), dblock_TD, dstream_TD, D)
        _backward[(T,)](*arguments, BLOCK_D=side, num_warps=warps(side))
        return dblock_TD, dstream_TD, None, None, None


def residual_mix(
    block_TD: torch.Tensor,
    stream_TD: torch.Tensor,
    scale_D: torch.Tensor,
    score_D: torch.Tensor,
    epsilon: float = 1e-5,
) -> torch.Tensor:
    """The mix of *block_TD* and *stream_TD*, [T, D], by their scores; differentiable in both."""
    D = stream_TD.shape[-1]
    if block_TD.shape != stream_TD.shape or not scale_D.numel() == score_D.numel() == D or D > WIDEST_ROW:
        message = (
            f"rows of {tuple(block_TD.shape)} and {tuple(stream_TD.shape)} with vectors of {scale_D.numel()} and "
            f"{score_D.numel()}: they must agree, and be at most {WIDEST_ROW} wide"
        )
        raise ValueError(message)
    return _ResidualMix.apply(block_TD.contiguous(), stream_TD.contiguous(), scale_D, score_D, epsilon)
