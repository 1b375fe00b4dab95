"""RMSNorm: y = x / sqrt(mean(x^2) + epsilon) * weight, in one pass over memory each way.

A program keeps a whole row in registers, so rows wider than 16,384 are refused. The backward pass sums the gradient of
the weight over the rows of one program first and over programs in PyTorch: same input, same bits.

Legend: T rows, D width, P programs of the backward pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.device import multiprocessors

WIDEST_ROW = 16384
PROGRAMS_PER_MULTIPROCESSOR = 4


@triton.jit
def _forward(x_ptr, weight_ptr, y_ptr, rstd_ptr, D, epsilon, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d_D = tl.arange(0, BLOCK_D)
    inside_D = d_D < D
    x_D = tl.load(x_ptr + row * D + d_D, mask=inside_D, other=0.0).to(tl.float32)
    weight_D = tl.load(weight_ptr + d_D, mask=inside_D, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x_D * x_D, 0) / D + epsilon)
    tl.store(rstd_ptr + row, rstd)
    tl.store(y_ptr + row * D + d_D, (x_D * rstd * weight_D).to(y_ptr.dtype.element_ty), mask=inside_D)


@triton.jit
def _backward(x_ptr, weight_ptr, rstd_ptr, dy_ptr, dx_ptr, dweight_ptr, T, D, BLOCK_D: tl.constexpr):
    program = tl.program_id(0)
    d_D = tl.arange(0, BLOCK_D)
    inside_D = d_D < D
    weight_D = tl.load(weight_ptr + d_D, mask=inside_D, other=0.0).to(tl.float32)
    dweight_D = tl.zeros([BLOCK_D], dtype=tl.float32)
    for row in range(program, T, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * D
        x_D = tl.load(x_ptr + at + d_D, mask=inside_D, other=0.0).to(tl.float32)
        dy_D = tl.load(dy_ptr + at + d_D, mask=inside_D, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        unit_D = x_D * rstd
        dunit_D = dy_D * weight_D
        dx_D = (dunit_D - unit_D * (tl.sum(unit_D * dunit_D, 0) / D)) * rstd
        dweight_D += dy_D * unit_D
        tl.store(dx_ptr + at + d_D, dx_D.to(dx_ptr.dtype.element_ty), mask=inside_D)
    tl.store(dweight_ptr + program * D + d_D, dweight_D, mask=inside_D)


def warps(block: int) -> int:
    """Warps that give each thread 16 to 32 elements of a row of *block*."""
    return min(16, max(1, block // 1024))


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TD, weight_D, epsilon):
        T, D = x_TD.shape
        y_TD, rstd_T = torch.empty_like(x_TD), x_TD.new_empty(T, dtype=torch.float32)
        block = triton.next_power_of_2(D)
        _forward[(T,)](x_TD, weight_D, y_TD, rstd_T, D, epsilon, BLOCK_D=block, num_warps=warps(block))
        ctx.save_for_backward(x_TD, weight_D, rstd_T)
        return y_TD

    @staticmethod
    def backward(ctx, dy_TD):
        x_TD, weight_D, rstd_T = ctx.saved_tensors
        T, D = x_TD.shape
        programs = min(T, PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(x_TD))
        dx_TD, dweight_PD = torch.empty_like(x_TD), x_TD.new_empty(programs, D, dtype=torch.float32)
        block = triton.next_power_of_2(D)
        arguments = (x_TD, weight_D, rstd_T, dy_TD.contiguous(), dx_TD, dweight_PD, T, D)
        _backward[(programs,)](*arguments, BLOCK_D=block, num_warps=warps(block))
        return dx_TD, dweight_PD.sum(0).to(weight_D.dtype), None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-5) -> torch.Tensor:
    """Normalise the last dimension of *x* to a mean square of one and scale it by *weight*; differentiable in both."""
    if x.shape[-1] != weight.numel() or x.shape[-1] > WIDEST_ROW:
        message = (
            f"rows of {x.shape[-1]} with a weight of {weight.numel()}: they must agree and be at most {WIDEST_ROW}"
        )
        raise ValueError(message)
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    return _RmsNorm.apply(rows, weight, epsilon).reshape(x.shape)
