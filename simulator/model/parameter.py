"""One named tensor of weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

Role = Literal[
    "embedding",
    "head",
    "norm",
    "attention",
    "indexer",
    "mlp",
    "router",
    "latent",
    "shared_expert",
    "routed_expert",
    "residual_mix",
    "mtp",
    "vision",
    "projector",
]
"""What a parameter is for; LoRA targets and tables by block select by it."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight tensor as a framework holds it.

    A routed expert's matrix is one tensor whose first dim is the expert: shape (experts, in, out). FSDP2 pads dim 0,
    so *shape* is the checkpoint's own order.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    linear: bool = False
    """True for the weight of a linear layer, to which LoRA can attach; its shape is then (out, in)."""

    @property
    def elements(self) -> int:
        """How many numbers the tensor holds."""
        return prod(self.shape)
