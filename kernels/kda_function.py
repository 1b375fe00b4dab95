"""KDA as one differentiable function, whichever kernels compute it.

Those of `kernels.kda_backward` and `kernels.kda_chain_backward` differ in the tokens of a chunk and in what the forward
pass keeps for the backward pass beside its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kernels.kda import checked

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Way:
    """Tokens of a chunk; (inputs, lengths, first states, lowest gate) to (outputs, last states, what is kept); back.

    *backward* takes (inputs, what was kept, chunks, first states, lowest gate, gradients of outputs, of last states)
    to (gradients of the inputs, of the first states).
    """

    chunk: int
    forward: Callable[..., tuple[torch.Tensor, torch.Tensor, Tensors]]
    backward: Callable[..., tuple[Tensors, torch.Tensor]]


class _DeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, way, lengths, lower_bound, begin_SHDD, *inputs):
        ctx.way, ctx.lower_bound = way, lower_bound
        ctx.chunks = checked(inputs, lengths, lower_bound, way.chunk)
        o_THD, final_SHDD, kept = way.forward(inputs, lengths, begin_SHDD, lower_bound)
        ctx.inputs = len(inputs)
        ctx.save_for_backward(begin_SHDD, *inputs, *kept)
        return o_THD, final_SHDD

    @staticmethod
    def backward(ctx, do_THD, dfinal_SHDD):
        begin, *rest = ctx.saved_tensors
        inputs, kept = rest[: ctx.inputs], rest[ctx.inputs :]
        known = (inputs, kept, ctx.chunks, begin, ctx.lower_bound)
        gradients, dbegin = ctx.way.backward(*known, do_THD, dfinal_SHDD)
        return None, None, None, None if begin is None else dbegin, *gradients


def delta_rule(
    way: Way,
    inputs: Tensors,
    lengths: Sequence[int] | None,
    begin_SHDD: torch.Tensor | None,
    lower_bound: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o_THD, last states) of inputs as of `kernels.kda.kda_forward`, differentiable in all and in the first states."""
    return _DeltaRule.apply(way, lengths, lower_bound, begin_SHDD, *(x.contiguous() for x in inputs))
