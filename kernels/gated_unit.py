"""Gated activations of the experts: SwiGLU and SiTU, from gate and up side by side to their product.

SwiGLU: gate * sigmoid(gate) * up. SiTU: beta * tanh(gate / beta) * sigmoid(gate) * beta_up * tanh(up / beta_up).
Both are computed in fp32. The backward pass reads the input again and keeps nothing else.

Legend: T rows, F width of the gate; x_TG holds gate and up, G = 2 F.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
SITU_BETA, SITU_BETA_UP = 4.0, 25.0
"""Values of Kimi K3."""


@triton.jit
def _tanh(x):
    """2 sigmoid(2x) - 1: exact at both ends, where a quotient of exponentials overflows."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _forward(x_ptr, y_ptr, F, beta, beta_up, SITU: tl.constexpr, BLOCK_F: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    f_F = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    inside_F = f_F < F
    gate_F = tl.load(x_ptr + row * 2 * F + f_F, mask=inside_F, other=0.0).to(tl.float32)
    up_F = tl.load(x_ptr + row * 2 * F + F + f_F, mask=inside_F, other=0.0).to(tl.float32)
    if SITU:
        y_F = beta * _tanh(gate_F / beta) * tl.sigmoid(gate_F) * beta_up * _tanh(up_F / beta_up)
    else:
        y_F = gate_F * tl.sigmoid(gate_F) * up_F
    tl.store(y_ptr + row * F + f_F, y_F.to(y_ptr.dtype.element_ty), mask=inside_F)


@triton.jit
def _backward(x_ptr, dy_ptr, dx_ptr, F, beta, beta_up, SITU: tl.constexpr, BLOCK_F: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    f_F = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    inside_F = f_F < F
    gate_F = tl.load(x_ptr + row * 2 * F + f_F, mask=inside_F, other=0.0).to(tl.float32)
    up_F = tl.load(x_ptr + row * 2 * F + F + f_F, mask=inside_F, other=0.0).to(tl.float32)
    dy_F = tl.load(dy_ptr + row * F + f_F, mask=inside_F, other=0.0).to(tl.float32)
    open_F = tl.sigmoid(gate_F)
    if SITU:
        soft_F = _tanh(gate_F / beta)
        soft_up_F = _tanh(up_F / beta_up)
        dgate_F = ((1.0 - soft_F * soft_F) * open_F + beta * soft_F * open_F * (1.0 - open_F)) * beta_up * soft_up_F
        dup_F = beta * soft_F * open_F * (1.0 - soft_up_F * soft_up_F)
    else:
        dgate_F = open_F * (1.0 + gate_F * (1.0 - open_F)) * up_F
        dup_F = gate_F * open_F
    tl.store(dx_ptr + row * 2 * F + f_F, (dy_F * dgate_F).to(dx_ptr.dtype.element_ty), mask=inside_F)
    tl.store(dx_ptr + row * 2 * F + F + f_F, (dy_F * dup_F).to(dx_ptr.dtype.element_ty), mask=inside_F)


class _GatedUnit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TG, beta, beta_up, situ):
        T, F = x_TG.shape[0], x_TG.shape[1] // 2
        y_TF = x_TG.new_empty(T, F)
        _forward[(T, triton.cdiv(F, BLOCK))](x_TG, y_TF, F, beta, beta_up, SITU=situ, BLOCK_F=BLOCK)
        ctx.save_for_backward(x_TG)
        ctx.shape = (beta, beta_up, situ)
        return y_TF

    @staticmethod
    def backward(ctx, dy_TF):
        (x_TG,) = ctx.saved_tensors
        beta, beta_up, situ = ctx.shape
        T, F = dy_TF.shape
        dx_TG = torch.empty_like(x_TG)
        grid = (T, triton.cdiv(F, BLOCK))
        _backward[grid](x_TG, dy_TF.contiguous(), dx_TG, F, beta, beta_up, SITU=situ, BLOCK_F=BLOCK)
        return dx_TG, None, None, None


def swiglu(x_TG: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of rows that hold gate and up side by side; differentiable."""
    return _GatedUnit.apply(x_TG.contiguous(), 1.0, 1.0, False)


def situ(x_TG: torch.Tensor, beta: float = SITU_BETA, beta_up: float = SITU_BETA_UP) -> torch.Tensor:
    """The soft-clipped gated unit of Kimi K3 over rows that hold gate and up side by side; differentiable."""
    return _GatedUnit.apply(x_TG.contiguous(), beta, beta_up, True)
