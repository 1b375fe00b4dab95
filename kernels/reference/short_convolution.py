"""The short convolution as one product of shifted inputs for each tap."""

from __future__ import annotations

import torch


def short_convolution(x_TC: torch.Tensor, w_C4: torch.Tensor, length: int) -> torch.Tensor:
    """SiLU of the weighted sum of each token and the three before it in its sequence of *length* tokens, in fp32."""
    padded = torch.nn.functional.pad(x_TC.float().view(-1, length, x_TC.shape[1]), (0, 0, 3, 0))
    taps = (padded[:, i : i + length] * w_C4[:, i].float() for i in range(4))
    return torch.nn.functional.silu(sum(taps)).reshape(x_TC.shape).to(x_TC.dtype)
