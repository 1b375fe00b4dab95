"""Gates of attention's output: the RMSNorm of each head times the sigmoid of a gate, and that sigmoid alone.

    gated_norm: y = x / sqrt(mean(x^2) + epsilon) * weight * sigmoid(gate),    sigmoid_gate: y = x * sigmoid(gate)

One kernel each way, in fp32. The norm's weight is taken as frozen and gets no gradient.

Legend: R rows (a token's head each), D width of a head, N elements.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

ROWS = 16
WIDEST_HEAD = 1024
BLOCK = 2048


@triton.jit
def _norm_forward(x_ptr, gate_ptr, weight_ptr, y_ptr, rstd_ptr, R, D, epsilon, ROWS: tl.constexpr,
                  BLOCK_D: tl.constexpr):  # fmt: skip
    r_R, d_D = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    at_RD, inside_RD = r_R[:, None].to(tl.int64) * D + d_D[None, :], (r_R < R)[:, None] & (d_D < D)[None, :]
    x_RD = tl.load(x_ptr + at_RD, mask=inside_RD, other=0.0).to(tl.float32)
    gate_RD = tl.load(gate_ptr + at_RD, mask=inside_RD, other=0.0).to(tl.float32)
    weight_D = tl.load(weight_ptr + d_D, mask=d_D < D, other=0.0).to(tl.float32)
    rstd_R = 1.0 / tl.sqrt(tl.sum(x_RD * x_RD, 1) / D + epsilon)
    tl.store(rstd_ptr + r_R, rstd_R, mask=r_R < R)
    y_RD = x_RD * rstd_R[:, None] * weight_D[None, :] * tl.sigmoid(gate_RD)
    tl.store(y_ptr + at_RD, y_RD.to(y_ptr.dtype.element_ty), mask=inside_RD)


@triton.jit
def _norm_backward(x_ptr, gate_ptr, weight_ptr, rstd_ptr, dy_ptr, dx_ptr, dgate_ptr, R, D, ROWS: tl.constexpr,
                   BLOCK_D: tl.constexpr):  # fmt: skip
    r_R, d_D = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    at_RD, inside_RD = r_R[:, None].to(tl.int64) * D + d_D[None, :], (r_R < R)[:, None] & (d_D < D)[None, :]
    x_RD = tl.load(x_ptr + at_RD, mask=inside_RD, other=0.0).to(tl.float32)
    open_RD = tl.sigmoid(tl.load(gate_ptr + at_RD, mask=inside_RD, other=0.0).to(tl.float32))
    dy_RD = tl.load(dy_ptr + at_RD, mask=inside_RD, other=0.0).to(tl.float32)
    weight_D = tl.load(weight_ptr + d_D, mask=d_D < D, other=0.0).to(tl.float32)
    rstd_R = tl.load(rstd_ptr + r_R, mask=r_R < R, other=0.0)
    unit_RD, through_RD = x_RD * rstd_R[:, None], dy_RD * weight_D[None, :]
    dgate_RD = through_RD * unit_RD * open_RD * (1.0 - open_RD)
    dunit_RD = through_RD * open_RD
    dx_RD = (dunit_RD - unit_RD * (tl.sum(unit_RD * dunit_RD, 1) / D)[:, None]) * rstd_R[:, None]
    tl.store(dx_ptr + at_RD, dx_RD.to(dx_ptr.dtype.element_ty), mask=inside_RD)
    tl.store(dgate_ptr + at_RD, dgate_RD.to(dgate_ptr.dtype.element_ty), mask=inside_RD)


@triton.jit
def _gate_forward(x_ptr, gate_ptr, y_ptr, N, BLOCK_N: tl.constexpr):
    n_N = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    x_N = tl.load(x_ptr + n_N, mask=n_N < N, other=0.0).to(tl.float32)
    gate_N = tl.load(gate_ptr + n_N, mask=n_N < N, other=0.0).to(tl.float32)
    tl.store(y_ptr + n_N, (x_N * tl.sigmoid(gate_N)).to(y_ptr.dtype.element_ty), mask=n_N < N)


@triton.jit
def _gate_backward(x_ptr, gate_ptr, dy_ptr, dx_ptr, dgate_ptr, N, BLOCK_N: tl.constexpr):
    n_N = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    x_N = tl.load(x_ptr + n_N, mask=n_N < N, other=0.0).to(tl.float32)
    open_N = tl.sigmoid(tl.load(gate_ptr + n_N, mask=n_N < N, other=0.0).to(tl.float32))
    dy_N = tl.load(dy_ptr + n_N, mask=n_N < N, other=0.0).to(tl.float32)
    tl.store(dx_ptr + n_N, (dy_N * open_N).to(dx_ptr.dtype.element_ty), mask=n_N < N)
    dgate_N = dy_N * x_N * open_N * (1.0 - open_N)
    tl.store(dgate_ptr + n_N, dgate_N.to(dgate_ptr.dtype.element_ty), mask=n_N < N)


class _GatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_RD, gate_RD, weight_D, epsilon):
        R, D = x_RD.shape
        y_RD, rstd_R = torch.empty_like(x_RD), x_RD.new_empty(R, dtype=torch.float32)
        sides = {"ROWS": ROWS, "BLOCK_D": triton.next_power_of_2(D)}
        _norm_forward[(triton.cdiv(R, ROWS),)](x_RD, gate_RD, weight_D, y_RD, rstd_R, R, D, epsilon, **sides)
        ctx.save_for_backward(x_RD, gate_RD, weight_D, rstd_R)
        return y_RD

    @staticmethod
    def backward(ctx, dy_RD):
        x_RD, gate_RD, weight_D, rstd_R = ctx.saved_tensors
        (R, D), dx_RD, dgate_RD = x_RD.shape, torch.empty_like(x_RD), torch.empty_like(gate_RD)
        arguments = (x_RD, gate_RD, weight_D, rstd_R, dy_RD.contiguous(), dx_RD, dgate_RD, R, D)
        sides = {"ROWS": ROWS, "BLOCK_D": triton.next_power_of_2(D)}
        _norm_backward[(triton.cdiv(R, ROWS),)](*arguments, **sides)
        return dx_RD, dgate_RD, None, None


class _SigmoidGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate):
        N, y = x.numel(), torch.empty_like(x)
        _gate_forward[(triton.cdiv(N, BLOCK),)](x, gate, y, N, BLOCK_N=BLOCK)
        ctx.save_for_backward(x, gate)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, gate = ctx.saved_tensors
        N, dx, dgate = x.numel(), torch.empty_like(x), torch.empty_like(gate)
        _gate_backward[(triton.cdiv(N, BLOCK),)](x, gate, dy.contiguous(), dx, dgate, N, BLOCK_N=BLOCK)
        return dx, dgate


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-5) -> torch.Tensor:
    """Norm of the last dimension of *x*, scaled by *weight* and opened by *gate*; differentiable in *x* and *gate*."""
    D = x.shape[-1]
    if gate.shape != x.shape or weight.numel() != D or D > WIDEST_HEAD:
        message = (
            f"heads of {tuple(x.shape)} with a gate of {tuple(gate.shape)} and a weight of {weight.numel()}: "
            f"they must agree, and the last dimension be at most {WIDEST_HEAD}"
        )
        raise ValueError(message)
    rows = (y.reshape(-1, D).contiguous() for y in (x, gate))
    return _GatedNorm.apply(*rows, weight, epsilon).reshape(x.shape)


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """*x* times the sigmoid of *gate*, which has as many elements; differentiable in both."""
    if gate.shape != x.shape:
        message = f"a tensor of {tuple(x.shape)} with a gate of {tuple(gate.shape)}: they must agree"
        raise ValueError(message)
    return _SigmoidGate.apply(x.contiguous(), gate.contiguous())
