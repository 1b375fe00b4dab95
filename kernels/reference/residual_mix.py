"""Attention residuals as small operators, of both candidates."""

from __future__ import annotations

import torch

from kernels.reference.rms_norm import rms_norm


def residual_mix(
    block_TD: torch.Tensor,
    stream_TD: torch.Tensor,
    scale_D: torch.Tensor,
    score_D: torch.Tensor,
    epsilon: float = 1e-5,
) -> torch.Tensor:
    """Both candidates by the softmax of the products of their norms with the scoring vector, in fp32."""
    x_CTD = torch.stack([block_TD, stream_TD]).float()
    score_CT = rms_norm(x_CTD, scale_D, epsilon) @ score_D.float()
    return torch.einsum("ct,ctd->td", score_CT.softmax(0), x_CTD).to(stream_TD.dtype)
