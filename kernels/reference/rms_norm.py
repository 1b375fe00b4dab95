"""RMSNorm as five small operators."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-5) -> torch.Tensor:
    """Row x / sqrt(mean(x^2) + epsilon) * weight over the last dimension, in fp32, back in the type of *x*."""
    wide = x.float()
    unit = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (unit * weight.float()).to(x.dtype)
