"""The plain loss of a linear head: all logits at once."""

from __future__ import annotations

import torch


def plain_loss(x_ND: torch.Tensor, w_VD: torch.Tensor, label_N: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of x W^T in fp32 against the labels other than -100."""
    return torch.nn.functional.cross_entropy((x_ND @ w_VD.T).float(), label_N, ignore_index=-100)
