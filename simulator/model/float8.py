"""fp8 products beside bf16 weights: how values are scaled, which linear layers take part, where weights are cast.

Linear layers of the decoder's layers take part; attention's core, routers, indexers, embedding, output layer and the
projections of prediction modules do not. fp8 products read both operands along the inner dimension, and the three
products of a training step have three inner dimensions: an operand that takes part in two of them is there twice, as
Hopper's tensor cores want it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.model.parameter import Parameter

Scales = Literal["one_by_one", "together", "as_cast"]
"""How MXFP8's scales come to the order in which products read them, see `operators/float8_scales.py`."""
Recipe = Literal["delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"]
"""Scale a tensor, from the largest values of earlier steps or its own; a scale a row; a scale for 1 x 128 values of an
activation and 128 x 128 of a weight (DeepSeek-V3); a power of two for 32 values (OCP MX)."""

DTYPES: dict[Recipe, str] = {
    "delayed": "fp8",
    "tensorwise": "fp8",
    "rowwise": "fp8/rowwise",
    "blockwise": "fp8/blockwise",
    "mxfp8": "fp8/mx",
}
"""What products of a recipe are priced as."""
SCALE_BYTES: dict[Recipe, float] = {"blockwise": 4 / 128, "mxfp8": 1 / 32}
"""Scales beside one fp8 activation element, where there are so many that they count."""
ALIGNMENT = 16
"""Both widths of a linear layer that takes part are multiples of it, as fp8 tensor cores want."""
_LEFT_OUT = ("router", "indexer", "routed_expert", "head", "mtp", "vision", "projector")


@dataclass(frozen=True, slots=True)
class Float8:
    """How linear layers multiply in fp8."""

    recipe: Recipe
    dense: bool = True
    """Whether linear layers outside the routed experts take part."""
    experts: bool = False
    """Whether routed experts do."""
    dispatch: bool = False
    """Whether rows travel to their experts in fp8, and so the gradients of what the experts return."""
    kept: bool = False
    """Whether both copies of a weight are made once a step and stay; else every pass casts what it uses."""
    gathered: bool = False
    """Whether weights come in fp8 from the ranks that share them."""
    keeps_cast_input: bool = False
    """Whether the backward pass is kept the fp8 copy of an input in place of the input."""
    originals: frozenset[str] = frozenset()
    """Inputs kept as they are nevertheless, because recomputation gives them up or others keep them: they are cast
    again backward."""
    scales: Scales | None = None
    """None where the stack is not Transformer Engine's or the recipe has no such scales."""
    stored: frozenset[str] = frozenset()
    """Tensors that are kept in fewer bits between the passes."""


def aligned(*widths: int) -> bool:
    """Whether products of these widths can run in fp8."""
    return all(width % ALIGNMENT == 0 for width in widths)


def takes_part(parameter: Parameter) -> bool:
    """Whether *parameter*, of a layer, is the weight of a dense linear layer that multiplies in fp8."""
    return parameter.linear and parameter.role not in _LEFT_OUT and aligned(*parameter.shape)
