"""Depthwise causal convolution over four tokens with SiLU behind it, as linear attention has before its delta rule.

    y_t = silu(sum_i w_i x_(t - 3 + i)),    tokens before the first of a sequence count as zeros

One pass over memory each way: the backward pass computes the sums again from the inputs it reads. Weights are taken as
frozen and get no gradient.

Legend: T tokens, C channels; x_TC; w_C4 with the present token's weight last. Sequences are all of one length.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TAPS = 4
TOKENS, CHANNELS = 8, 128


@triton.jit
def _row(ptr, t_T, place_T, c_C, T, C, length, AWAY: tl.constexpr):
    """Rows AWAY tokens behind t_T in fp32, zeros where another sequence, or none, is there."""
    there_T = (t_T + AWAY < T) & (place_T + AWAY >= 0) & (place_T + AWAY < length)
    at_TC = (t_T[:, None] + AWAY).to(tl.int64) * C + c_C[None, :]
    return tl.load(ptr + at_TC, mask=there_T[:, None] & (c_C < C)[None, :], other=0.0).to(tl.float32)


@triton.jit
def _weight(w_ptr, c_C, C, TAP: tl.constexpr):
    return tl.load(w_ptr + c_C * 4 + TAP, mask=c_C < C, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _dsilu(x):
    open_ = tl.sigmoid(x)
    return open_ * (1.0 + x * (1.0 - open_))


@triton.jit
def _forward(x_ptr, w_ptr, y_ptr, T, C, length, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr):
    t_T = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    c_C = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    place_T = t_T % length
    sum_TC = tl.zeros([BLOCK_T, BLOCK_C], dtype=tl.float32)
    for tap in tl.static_range(4):
        sum_TC += _weight(w_ptr, c_C, C, tap) * _row(x_ptr, t_T, place_T, c_C, T, C, length, tap - 3)
    at_TC = t_T[:, None].to(tl.int64) * C + c_C[None, :]
    y_TC = (sum_TC * tl.sigmoid(sum_TC)).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + at_TC, y_TC, mask=(t_T < T)[:, None] & (c_C < C)[None, :])


@triton.jit
def _backward(x_ptr, w_ptr, dy_ptr, dx_ptr, T, C, length, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr):
    """A token's gradient comes through its own sum and the three behind it, which seven inputs make."""
    t_T = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    c_C = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    place_T = t_T % length
    w0, w1 = _weight(w_ptr, c_C, C, 0), _weight(w_ptr, c_C, C, 1)
    w2, w3 = _weight(w_ptr, c_C, C, 2), _weight(w_ptr, c_C, C, 3)
    x0 = _row(x_ptr, t_T, place_T, c_C, T, C, length, -3)
    x1 = _row(x_ptr, t_T, place_T, c_C, T, C, length, -2)
    x2 = _row(x_ptr, t_T, place_T, c_C, T, C, length, -1)
    x3 = _row(x_ptr, t_T, place_T, c_C, T, C, length, 0)
    x4 = _row(x_ptr, t_T, place_T, c_C, T, C, length, 1)
    x5 = _row(x_ptr, t_T, place_T, c_C, T, C, length, 2)
    x6 = _row(x_ptr, t_T, place_T, c_C, T, C, length, 3)
    dx_TC = w3 * _row(dy_ptr, t_T, place_T, c_C, T, C, length, 0) * _dsilu(w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3)
    dx_TC += w2 * _row(dy_ptr, t_T, place_T, c_C, T, C, length, 1) * _dsilu(w0 * x1 + w1 * x2 + w2 * x3 + w3 * x4)
    dx_TC += w1 * _row(dy_ptr, t_T, place_T, c_C, T, C, length, 2) * _dsilu(w0 * x2 + w1 * x3 + w2 * x4 + w3 * x5)
    dx_TC += w0 * _row(dy_ptr, t_T, place_T, c_C, T, C, length, 3) * _dsilu(w0 * x3 + w1 * x4 + w2 * x5 + w3 * x6)
    at_TC = t_T[:, None].to(tl.int64) * C + c_C[None, :]
    tl.store(dx_ptr + at_TC, dx_TC.to(dx_ptr.dtype.element_ty), mask=(t_T < T)[:, None] & (c_C < C)[None, :])


def _grid(T: int, C: int) -> tuple[int, int]:
    return triton.cdiv(T, TOKENS), triton.cdiv(C, CHANNELS)


class _ShortConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TC, w_C4, length):
        (T, C), y_TC = x_TC.shape, torch.empty_like(x_TC)
        _forward[_grid(T, C)](x_TC, w_C4, y_TC, T, C, length, BLOCK_T=TOKENS, BLOCK_C=CHANNELS)
        ctx.save_for_backward(x_TC, w_C4)
        ctx.length = length
        return y_TC

    @staticmethod
    def backward(ctx, dy_TC):
        x_TC, w_C4 = ctx.saved_tensors
        (T, C), dx_TC, sides = x_TC.shape, torch.empty_like(x_TC), {"BLOCK_T": TOKENS, "BLOCK_C": CHANNELS}
        _backward[_grid(T, C)](x_TC, w_C4, dy_TC.contiguous(), dx_TC, T, C, ctx.length, **sides)
        return dx_TC, None, None


def short_convolution(x_TC: torch.Tensor, w_C4: torch.Tensor, length: int) -> torch.Tensor:
    """The convolution of sequences of *length* tokens one after the other, and SiLU; differentiable in *x_TC*."""
    (T, C), wanted = x_TC.shape, (x_TC.shape[1], TAPS)
    if w_C4.shape != wanted or T % length:
        message = f"{T} tokens in sequences of {length} with weights of {tuple(w_C4.shape)}: {C} channels need {wanted}"
        raise ValueError(message)
    return _ShortConvolution.apply(x_TC.contiguous(), w_C4.contiguous(), length)
