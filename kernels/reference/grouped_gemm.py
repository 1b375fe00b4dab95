"""One matrix product per expert."""

from __future__ import annotations

import torch


def grouped_gemm(x_MK: torch.Tensor, w_EKN: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    """Rows of expert e, which end before row ends_E[e], times w_EKN[e]."""
    ends = [0, *ends_E.tolist()]
    return torch.cat([x_MK[a:b] @ w for a, b, w in zip(ends, ends[1:], w_EKN, strict=False)])
