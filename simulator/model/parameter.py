"""One named tensor of weights, and the blocks that a model's tensors come in."""

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

    *name* is the checkpoint's name inside its block, in the spelling that most families share
    ("self_attn.q_proj.weight", "mlp.experts.up_proj"): it follows from the component alone, not from the family.
    A routed expert's matrix is one tensor whose first dim is the expert: shape (experts, in, out). FSDP2 pads dim 0,
    so *shape* is the checkpoint's own order.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    linear: bool = False
    """True for the weight of a linear layer, to which LoRA can attach; its shape is then (out, in)."""
    dtype: str = "bf16"
    """The type in which an unquantised checkpoint stores it: fp32 for the few small tensors known to be kept so."""

    @property
    def elements(self) -> int:
        """How many numbers the tensor holds."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class ParameterBlock:
    """The parameters of one place in the model: the embedding, layer 17's mixer, the head."""

    name: str
    """Prefix of the names inside, such as "model.layers.17"."""
    part: str
    """What the block is, as a table names it: "embedding", "latent attention", "norms", "vision tower"."""
    parameters: tuple[Parameter, ...]
    layer: int | None = None
    """Index of the layer that the block belongs to; None outside the layers."""

    @property
    def elements(self) -> int:
        """How many numbers the block holds."""
        return sum(parameter.elements for parameter in self.parameters)


def linear(name: str, out: int, into: int, role: Role, *, bias: bool = False) -> tuple[Parameter, ...]:
    """The weight (*out*, *into*) of the linear layer *name*, and its bias where it has one."""
    weight = Parameter(f"{name}.weight", (out, into), role, linear=True)
    return (weight, Parameter(f"{name}.bias", (out,), role)) if bias else (weight,)


def norm(name: str, width: int, role: Role = "norm", *, bias: bool = False) -> tuple[Parameter, ...]:
    """The scale of the normalisation *name* over *width* elements, and its shift where it has one (LayerNorm)."""
    weight = Parameter(f"{name}.weight", (width,), role)
    return (weight, Parameter(f"{name}.bias", (width,), role)) if bias else (weight,)
