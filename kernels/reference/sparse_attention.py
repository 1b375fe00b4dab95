"""Attention to chosen keys by small operators, which store every key that every query gathers."""

from __future__ import annotations

import torch


def sparse_attention(
    q_THC: torch.Tensor, kv_SC: torch.Tensor, index_TJ: torch.Tensor, latent: int, scale: float
) -> torch.Tensor:
    """[T, H, latent] of queries in the absorbed layout; an index of -1 is no key, and each query has one at least."""
    index = index_TJ.long()
    kv_TJC = kv_SC[index.clamp(min=0)]
    score_THJ = torch.einsum("thc,tjc->thj", q_THC, kv_TJC).float() * scale
    p_THJ = score_THJ.masked_fill((index < 0)[:, None], -torch.inf).softmax(-1)
    return torch.einsum("thj,tjd->thd", p_THJ.to(q_THC.dtype), kv_TJC[..., :latent])
