"""SwiGLU and SiTU as small operators."""

from __future__ import annotations

import torch


def swiglu(x_TG: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, in fp32."""
    gate, up = x_TG.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x_TG.dtype)


def situ(x_TG: torch.Tensor, beta: float = 4.0, beta_up: float = 25.0) -> torch.Tensor:
    """Product beta tanh(gate / beta) sigmoid(gate) * beta_up tanh(up / beta_up), in fp32."""
    gate, up = x_TG.float().chunk(2, dim=-1)
    clipped = beta * torch.tanh(gate / beta) * torch.sigmoid(gate)
    return (clipped * beta_up * torch.tanh(up / beta_up)).to(x_TG.dtype)
