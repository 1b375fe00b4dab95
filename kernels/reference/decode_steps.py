"""The small steps of a layer that decodes, by framework operators."""

from __future__ import annotations

import torch


def add_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """(RMSNorm of the sum, the sum)."""
    sum_TD = x_TD + residual_TD
    return torch.nn.functional.rms_norm(sum_TD, weight_D.shape, weight_D, epsilon), sum_TD


def choose_experts(logit_TE: torch.Tensor, bias_E: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """([T, top] experts, best first, their weights)."""
    score_TE = logit_TE.float().sigmoid()
    expert_TK = (score_TE + bias_E).topk(top, dim=-1).indices
    weight_TK = score_TE.gather(1, expert_TK)
    return expert_TK.int(), weight_TK / weight_TK.sum(-1, keepdim=True)
