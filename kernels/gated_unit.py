"""Gated activations of the experts: SwiGLU and SiTU, from gate and up side by side to their product.

SwiGLU: gate * sigmoid(gate) * up. SiTU: beta * tanh(gate / beta) * sigmoid(gate) * beta_up * tanh(up / beta_up).
Both are computed in fp32. The backward pass reads the input again and keeps nothing else. A weight for each row, the
share that a token gives its expert, may multiply the product: the rows behind the experts need then only be summed.

Legend: T rows, F width of the gate, P programs of a row; x_TG holds gate and up, G = 2 F.
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
def _forward(x_ptr, weight_ptr, y_ptr, F, beta, beta_up, SITU: tl.constexpr, WEIGHTED: tl.constexpr,
             BLOCK_F: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    f_F = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    inside_F = f_F < F
    gate_F = tl.load(x_ptr + row * 2 * F + f_F, mask=inside_F, other=0.0).to(tl.float32)
    up_F = tl.load(x_ptr + row * 2 * F + F + f_F, mask=inside_F, other=0.0).to(tl.float32)
    if SITU:
        y_F = beta * _tanh(gate_F / beta) * tl.sigmoid(gate_F) * beta_up * _tanh(up_F / beta_up)
    else:
        y_F = gate_F * tl.sigmoid(gate_F) * up_F
    if WEIGHTED:
        y_F *= tl.load(weight_ptr + row).to(tl.float32)
    tl.store(y_ptr + row * F + f_F, y_F.to(y_ptr.dtype.element_ty), mask=inside_F)


@triton.jit
def _backward(x_ptr, weight_ptr, dy_ptr, dx_ptr, dweight_ptr, F, beta, beta_up, SITU: tl.constexpr,
              WEIGHTED: tl.constexpr, BLOCK_F: tl.constexpr):  # fmt: skip
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
        y_F = beta * soft_F * open_F * beta_up * soft_up_F
    else:
        dgate_F = open_F * (1.0 + gate_F * (1.0 - open_F)) * up_F
        dup_F = gate_F * open_F
        y_F = gate_F * open_F * up_F
    if WEIGHTED:
        tl.store(dweight_ptr + row * tl.num_programs(1) + tl.program_id(1), tl.sum(dy_F * y_F, 0))
        dy_F *= tl.load(weight_ptr + row).to(tl.float32)
    tl.store(dx_ptr + row * 2 * F + f_F, (dy_F * dgate_F).to(dx_ptr.dtype.element_ty), mask=inside_F)
    tl.store(dx_ptr + row * 2 * F + F + f_F, (dy_F * dup_F).to(dx_ptr.dtype.element_ty), mask=inside_F)


class _GatedUnit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TG, weight_T, beta, beta_up, situ):
        T, F = x_TG.shape[0], x_TG.shape[1] // 2
        y_TF = x_TG.new_empty(T, F)
        flags = {"SITU": situ, "WEIGHTED": weight_T is not None, "BLOCK_F": BLOCK}
        _forward[(T, triton.cdiv(F, BLOCK))](x_TG, weight_T, y_TF, F, beta, beta_up, **flags)
        ctx.save_for_backward(x_TG, weight_T)
        ctx.flags, ctx.bounds = flags, (beta, beta_up)
        return y_TF

    @staticmethod
    def backward(ctx, dy_TF):
        x_TG, weight_T = ctx.saved_tensors
        T, F = dy_TF.shape
        grid = (T, triton.cdiv(F, BLOCK))
        dx_TG = torch.empty_like(x_TG)
        dweight_TP = None if weight_T is None else x_TG.new_empty(grid, dtype=torch.float32)
        _backward[grid](x_TG, weight_T, dy_TF.contiguous(), dx_TG, dweight_TP, F, *ctx.bounds, **ctx.flags)
        dweight_T = None if weight_T is None else dweight_TP.sum(1).to(weight_T.dtype)
        return dx_TG, dweight_T, None, None, None


def swiglu(x_TG: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of rows that hold gate and up side by side; differentiable."""
    return _GatedUnit.apply(x_TG.contiguous(), None, 1.0, 1.0, False)


def situ(
    x_TG: torch.Tensor,
    weight_T: torch.Tensor | None = None,
    beta: float = SITU_BETA,
    beta_up: float = SITU_BETA_UP,
) -> torch.Tensor:
    """The soft-clipped gated unit of Kimi K3 over rows that hold gate and up side by side, times a weight a row.

    Differentiable in both.
    """
    return _GatedUnit.apply(x_TG.contiguous(), weight_T, beta, beta_up, True)
