"""Tokens into the order of their experts and back, and the norm of what comes back.

`permute` writes every token's row once for each expert that takes it, `unpermute` sums the rows that came back, each
by its weight, and `combine_norm` does that and the RMSNorm behind it in one pass, so that the sum never reaches memory.
`sum_rows` sums rows that were weighted before; of one row a token, both it and `permute` only reorder rows.
Each program holds one token: it reads the row once however many experts take it, and nothing is added atomically.

Legend: T tokens, K experts of a token, R rows in expert order, D width, P programs. row_TK says in which row a
token's copy for each of its experts lies; -1 where another rank holds that expert.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.device import multiprocessors
from kernels.rms_norm import WIDEST_ROW, warps

PROGRAMS_PER_MULTIPROCESSOR = 4


def expert_order(expert_TK: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(row_TK, ends_E): where each copy goes, and where each expert's rows end, tokens of one expert in their order.

    An expert outside 0..*experts* - 1 is another rank's: its copies get row -1.
    """
    flat = expert_TK.flatten().long()
    key = torch.where((flat >= 0) & (flat < experts), flat, experts)
    in_order, order = torch.sort(key, stable=True)
    row = torch.empty_like(order)
    row[order] = torch.arange(len(order), device=order.device)
    # Not by torch.bincount, for whose largest number the host waits.
    ends = torch.searchsorted(in_order, torch.arange(experts, device=order.device), right=True)
    return torch.where(key < experts, row, -1).view(expert_TK.shape).int(), ends.int()


@triton.jit
def _copy_out(x_ptr, row_ptr, y_ptr, D, K: tl.constexpr, BLOCK_D: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    d_D = tl.arange(0, BLOCK_D)
    x_D = tl.load(x_ptr + token * D + d_D, mask=d_D < D, other=0.0)
    for k in range(K):
        row = tl.load(row_ptr + token * K + k).to(tl.int64)
        tl.store(y_ptr + row * D + d_D, x_D, mask=d_D < tl.where(row >= 0, D, 0))


@triton.jit
def _weighted_sum(y_ptr, row_ptr, weight_ptr, token, D, d_D, K: tl.constexpr, WEIGHTED: tl.constexpr):
    """Sum in fp32 of the rows of one token, each by its weight if WEIGHTED."""
    sum_D = tl.zeros(d_D.shape, dtype=tl.float32)
    for k in range(K):
        row = tl.load(row_ptr + token * K + k).to(tl.int64)
        y_D = tl.load(y_ptr + row * D + d_D, mask=d_D < tl.where(row >= 0, D, 0), other=0.0).to(tl.float32)
        if WEIGHTED:
            y_D *= tl.load(weight_ptr + token * K + k).to(tl.float32)
        sum_D += y_D
    return sum_D


@triton.jit
def _give_back(y_ptr, row_ptr, weight_ptr, dy_ptr, dweight_ptr, token, dsum_D, D, d_D, K: tl.constexpr):
    """Hand the gradient of one token's sum to its rows and to their weights."""
    for k in range(K):
        row = tl.load(row_ptr + token * K + k).to(tl.int64)
        here_D = d_D < tl.where(row >= 0, D, 0)
        y_D = tl.load(y_ptr + row * D + d_D, mask=here_D, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + token * K + k).to(tl.float32)
        tl.store(dweight_ptr + token * K + k, tl.sum(y_D * dsum_D, 0))
        tl.store(dy_ptr + row * D + d_D, (dsum_D * weight).to(dy_ptr.dtype.element_ty), mask=here_D)


@triton.jit
def _sum_forward(y_ptr, row_ptr, weight_ptr, x_ptr, D, K: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK_D: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    d_D = tl.arange(0, BLOCK_D)
    sum_D = _weighted_sum(y_ptr, row_ptr, weight_ptr, token, D, d_D, K, WEIGHTED)
    tl.store(x_ptr + token * D + d_D, sum_D.to(x_ptr.dtype.element_ty), mask=d_D < D)


@triton.jit
def _sum_backward(y_ptr, row_ptr, weight_ptr, dx_ptr, dy_ptr, dweight_ptr, D, K: tl.constexpr, BLOCK_D: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    d_D = tl.arange(0, BLOCK_D)
    dx_D = tl.load(dx_ptr + token * D + d_D, mask=d_D < D, other=0.0).to(tl.float32)
    _give_back(y_ptr, row_ptr, weight_ptr, dy_ptr, dweight_ptr, token, dx_D, D, d_D, K)


@triton.jit
def _norm_forward(y_ptr, row_ptr, weight_ptr, scale_ptr, z_ptr, D, epsilon, K: tl.constexpr, BLOCK_D: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    d_D = tl.arange(0, BLOCK_D)
    x_D = _weighted_sum(y_ptr, row_ptr, weight_ptr, token, D, d_D, K, True)
    scale_D = tl.load(scale_ptr + d_D, mask=d_D < D, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x_D * x_D, 0) / D + epsilon)
    tl.store(z_ptr + token * D + d_D, (x_D * rstd * scale_D).to(z_ptr.dtype.element_ty), mask=d_D < D)


@triton.jit
def _norm_backward(y_ptr, row_ptr, weight_ptr, scale_ptr, dz_ptr, dy_ptr, dweight_ptr, dscale_ptr, T, D, epsilon,
                   K: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Sum the rows again rather than keep the sum: its rows are read for the gradients of the weights anyway."""
    program = tl.program_id(0)
    d_D = tl.arange(0, BLOCK_D)
    inside_D = d_D < D
    scale_D = tl.load(scale_ptr + d_D, mask=inside_D, other=0.0).to(tl.float32)
    dscale_D = tl.zeros([BLOCK_D], dtype=tl.float32)
    for narrow in range(program, T, tl.num_programs(0)):
        token = tl.cast(narrow, tl.int64)
        x_D = _weighted_sum(y_ptr, row_ptr, weight_ptr, token, D, d_D, K, True)
        dz_D = tl.load(dz_ptr + token * D + d_D, mask=inside_D, other=0.0).to(tl.float32)
        rstd = 1.0 / tl.sqrt(tl.sum(x_D * x_D, 0) / D + epsilon)
        unit_D = x_D * rstd
        dunit_D = dz_D * scale_D
        dscale_D += dz_D * unit_D
        dx_D = (dunit_D - unit_D * (tl.sum(unit_D * dunit_D, 0) / D)) * rstd
        _give_back(y_ptr, row_ptr, weight_ptr, dy_ptr, dweight_ptr, token, dx_D, D, d_D, K)
    tl.store(dscale_ptr + program * D + d_D, dscale_D, mask=inside_D)


def _launch(D: int) -> dict[str, int]:
    if D > WIDEST_ROW:
        message = f"rows of {D}: at most {WIDEST_ROW}"
        raise ValueError(message)
    block = triton.next_power_of_2(D)
    return {"BLOCK_D": block, "num_warps": warps(block)}


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TD, row_TK, rows):
        (T, D), K = x_TD.shape, row_TK.shape[1]
        y_RD = x_TD.new_empty(rows, D)
        _copy_out[(T,)](x_TD, row_TK, y_RD, D, K=K, **_launch(D))
        ctx.save_for_backward(row_TK)
        return y_RD

    @staticmethod
    def backward(ctx, dy_RD):
        (row_TK,) = ctx.saved_tensors
        (T, K), D = row_TK.shape, dy_RD.shape[1]
        dx_TD = dy_RD.new_empty(T, D)
        _sum_forward[(T,)](dy_RD.contiguous(), row_TK, row_TK, dx_TD, D, K=K, WEIGHTED=False, **_launch(D))
        return dx_TD, None, None


class _SumRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y_RD, row_TK):
        (T, K), (R, D) = row_TK.shape, y_RD.shape
        x_TD = y_RD.new_empty(T, D)
        _sum_forward[(T,)](y_RD, row_TK, row_TK, x_TD, D, K=K, WEIGHTED=False, **_launch(D))
        ctx.save_for_backward(row_TK)
        ctx.rows = R
        return x_TD

    @staticmethod
    def backward(ctx, dx_TD):
        (row_TK,) = ctx.saved_tensors
        (T, K), D = row_TK.shape, dx_TD.shape[1]
        dy_RD = dx_TD.new_empty(ctx.rows, D)
        _copy_out[(T,)](dx_TD.contiguous(), row_TK, dy_RD, D, K=K, **_launch(D))
        return dy_RD, None


class _Unpermute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y_RD, row_TK, weight_TK):
        (T, K), D = row_TK.shape, y_RD.shape[1]
        x_TD = y_RD.new_empty(T, D)
        _sum_forward[(T,)](y_RD, row_TK, weight_TK, x_TD, D, K=K, WEIGHTED=True, **_launch(D))
        ctx.save_for_backward(y_RD, row_TK, weight_TK)
        return x_TD

    @staticmethod
    def backward(ctx, dx_TD):
        y_RD, row_TK, weight_TK = ctx.saved_tensors
        (T, K), D = row_TK.shape, y_RD.shape[1]
        dy_RD, dweight_TK = torch.empty_like(y_RD), torch.empty_like(weight_TK, dtype=torch.float32)
        arguments = (y_RD, row_TK, weight_TK, dx_TD.contiguous(), dy_RD, dweight_TK, D)
        _sum_backward[(T,)](*arguments, K=K, **_launch(D))
        return dy_RD, None, dweight_TK.to(weight_TK.dtype)


class _CombineNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y_RD, row_TK, weight_TK, scale_D, epsilon):
        (T, K), D = row_TK.shape, y_RD.shape[1]
        z_TD = y_RD.new_empty(T, D)
        _norm_forward[(T,)](y_RD, row_TK, weight_TK, scale_D, z_TD, D, epsilon, K=K, **_launch(D))
        ctx.save_for_backward(y_RD, row_TK, weight_TK, scale_D)
        ctx.epsilon = epsilon
        return z_TD

    @staticmethod
    def backward(ctx, dz_TD):
        y_RD, row_TK, weight_TK, scale_D = ctx.saved_tensors
        (T, K), D = row_TK.shape, y_RD.shape[1]
        programs = min(T, PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(y_RD))
        dy_RD, dweight_TK = torch.empty_like(y_RD), torch.empty_like(weight_TK, dtype=torch.float32)
        dscale_PD = y_RD.new_empty(programs, D, dtype=torch.float32)
        arguments = (y_RD, row_TK, weight_TK, scale_D, dz_TD.contiguous(), dy_RD, dweight_TK, dscale_PD)
        _norm_backward[(programs,)](*arguments, T, D, ctx.epsilon, K=K, **_launch(D))
        return dy_RD, None, dweight_TK.to(weight_TK.dtype), dscale_PD.sum(0).to(scale_D.dtype), None


def permute(x_TD: torch.Tensor, row_TK: torch.Tensor, rows: int) -> torch.Tensor:
    """Rows in expert order, [rows, D]; *rows* is how many entries of *row_TK* are not -1. Differentiable in *x_TD*."""
    return _Permute.apply(x_TD.contiguous(), row_TK, rows)


def sum_rows(y_RD: torch.Tensor, row_TK: torch.Tensor) -> torch.Tensor:
    """Each token's rows summed, [T, D]; differentiable in *y_RD*, every row of which must belong to one entry."""
    return _SumRows.apply(y_RD.contiguous(), row_TK)


def unpermute(y_RD: torch.Tensor, row_TK: torch.Tensor, weight_TK: torch.Tensor) -> torch.Tensor:
    """Each token's rows summed by weight, [T, D]; differentiable in *y_RD* and *weight_TK*.

    Every row of *y_RD* must belong to one entry of *row_TK*: the gradient of others would stay unwritten.
    """
    return _Unpermute.apply(y_RD.contiguous(), row_TK, weight_TK.contiguous())


def combine_norm(
    y_RD: torch.Tensor, row_TK: torch.Tensor, weight_TK: torch.Tensor, scale_D: torch.Tensor, epsilon: float = 1e-5
) -> torch.Tensor:
    """`unpermute` and the RMSNorm of its result with *scale_D*, as one kernel; differentiable in all three."""
    return _CombineNorm.apply(y_RD.contiguous(), row_TK, weight_TK.contiguous(), scale_D, epsilon)
