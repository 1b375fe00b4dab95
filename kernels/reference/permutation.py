"""Dispatch and combine order with index operators."""

from __future__ import annotations

import torch

from kernels.reference.rms_norm import rms_norm


def permute(x_TD: torch.Tensor, row_TK: torch.Tensor, rows: int) -> torch.Tensor:
    """Row row_TK[t, k] of the result is row t of *x_TD*."""
    token, k = torch.nonzero(row_TK >= 0, as_tuple=True)
    row = row_TK[token, k].long()
    source = torch.empty(rows, dtype=torch.long, device=x_TD.device)
    source[row] = token
    return x_TD[source]


def unpermute(y_RD: torch.Tensor, row_TK: torch.Tensor, weight_TK: torch.Tensor) -> torch.Tensor:
    """Row t of the result is the sum over k of weight_TK[t, k] * y_RD[row_TK[t, k]], in fp32."""
    token, k = torch.nonzero(row_TK >= 0, as_tuple=True)
    scaled = y_RD[row_TK[token, k].long()].float() * weight_TK[token, k, None].float()
    zero = torch.zeros(len(row_TK), y_RD.shape[1], dtype=torch.float32, device=y_RD.device)
    return zero.index_add(0, token, scaled).to(y_RD.dtype)


def combine_norm(
    y_RD: torch.Tensor, row_TK: torch.Tensor, weight_TK: torch.Tensor, scale_D: torch.Tensor, epsilon: float = 1e-5
) -> torch.Tensor:
    """`unpermute`, then RMSNorm."""
    return rms_norm(unpermute(y_RD, row_TK, weight_TK), scale_D, epsilon)
