"""Gates of attention's output as small operators."""

from __future__ import annotations

import torch

from kernels.reference.rms_norm import rms_norm


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-5) -> torch.Tensor:
    """RMSNorm over the last dimension of *x*, in fp32, times the sigmoid of *gate*."""
    return (rms_norm(x.float(), weight, epsilon) * torch.sigmoid(gate.float())).to(x.dtype)


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """*x* times the sigmoid of *gate*, in fp32."""
    return (x.float() * torch.sigmoid(gate.float())).to(x.dtype)
