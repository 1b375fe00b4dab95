"""Small steps between the products of a layer that decodes, each in one kernel as inference engines have them.

`add_norm` adds a sub-layer's output to the residual stream and normalises the sum for the next sub-layer.
`choose_experts` turns a router's logits into experts and weights: sigmoid, a bias that takes part in the choice alone
(DeepSeek-V3), the best K by as many rounds of a maximum, weights of those chosen that add up to one.

Legend: T tokens, D channels, E experts, K experts of a token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def add_norm_kernel(x_ptr, residual_ptr, weight_ptr, y_ptr, D, epsilon, BLOCK_D: tl.constexpr):
    """One token; the sum takes the residual's place."""
    token, d_D = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_D)
    there_D = d_D < D
    x_D = tl.load(x_ptr + token * D + d_D, mask=there_D, other=0.0).to(tl.float32)
    sum_D = x_D + tl.load(residual_ptr + token * D + d_D, mask=there_D, other=0.0).to(tl.float32)
    tl.store(residual_ptr + token * D + d_D, sum_D.to(residual_ptr.dtype.element_ty), mask=there_D)
    scale = tl.rsqrt(tl.sum(sum_D * sum_D, 0) / D + epsilon)
    weight_D = tl.load(weight_ptr + d_D, mask=there_D, other=0.0).to(tl.float32)
    tl.store(y_ptr + token * D + d_D, (sum_D * scale * weight_D).to(y_ptr.dtype.element_ty), mask=there_D)


@triton.jit
def choose_kernel(
    logit_ptr, bias_ptr, expert_ptr, weight_ptr, E, K: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr
):
    """One token."""
    token, e_E, k_K = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_K)
    there_E = e_E < E
    score_E = 1.0 / (1.0 + tl.exp(-tl.load(logit_ptr + token * E + e_E, mask=there_E, other=0.0).to(tl.float32)))
    left_E = tl.where(there_E, score_E + tl.load(bias_ptr + e_E, mask=there_E, other=0.0), -float("inf"))
    expert_K = tl.zeros([BLOCK_K], dtype=tl.int32)
    weight_K = tl.zeros([BLOCK_K], dtype=tl.float32)
    for k in tl.static_range(K):
        best = tl.argmax(left_E, 0)
        expert_K = tl.where(k_K == k, best, expert_K)
        weight_K = tl.where(k_K == k, tl.sum(tl.where(e_E == best, score_E, 0.0), 0), weight_K)
        left_E = tl.where(e_E == best, -float("inf"), left_E)
    tl.store(expert_ptr + token * K + k_K, expert_K, mask=k_K < K)
    tl.store(weight_ptr + token * K + k_K, weight_K / tl.sum(weight_K, 0), mask=k_K < K)


def add_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, epsilon: float = 1e-6
) -> torch.Tensor:
    """RMSNorm of the sum, which *residual* holds afterwards."""
    (T, D), y_TD = x_TD.shape, torch.empty_like(x_TD)
    block = triton.next_power_of_2(D)
    warps = max(1, min(16, block // 512))
    add_norm_kernel[T,](x_TD, residual_TD, weight_D, y_TD, D, epsilon, BLOCK_D=block, num_warps=warps)
    return y_TD


def choose_experts(logit_TE: torch.Tensor, bias_E: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """([T, top] experts, best first, their weights)."""
    T, E = logit_TE.shape
    expert_TK = torch.empty(T, top, device=logit_TE.device, dtype=torch.int32)
    weight_TK = torch.empty(T, top, device=logit_TE.device, dtype=torch.float32)
    blocks = {"BLOCK_E": triton.next_power_of_2(E), "BLOCK_K": triton.next_power_of_2(top)}
    choose_kernel[T,](logit_TE, bias_E, expert_TK, weight_TK, E, K=top, **blocks, num_warps=2)
    return expert_TK, weight_TK
