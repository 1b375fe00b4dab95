"""Routed experts spread over ranks: whole experts each, rows by all-to-all, as torchtitan's `ExpertParallel` does it.

What runs is Hugging Face's `grouped_mm_experts_forward` with an exchange in its middle, less the masks that are there
for its own way of splitting experts: rows are sorted by expert, ranks tell each other how many rows each expert gets,
the host reads how many go where, rows go to their ranks, are put in the order of experts, computed, and take the same
way home.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn.functional import grouped_mm


def spread_experts(layer: nn.Module, group: dist.ProcessGroup) -> None:
    """Leave this rank of *group* its own experts of *layer*, and let their forward pass exchange rows."""
    experts = getattr(layer.mlp, "experts", None)
    if experts is None:
        return
    for name, weight in list(experts.named_parameters()):
        own = weight.shape[0] // group.size()
        first = group.rank() * own
        setattr(experts, name, nn.Parameter(weight.detach()[first : first + own].clone()))
    experts.group = group
    experts.forward = MethodType(exchanged_experts, experts)


def rows_by_expert(layers: Any) -> list[list[int]]:
    """Rows that each expert of each layer took in the last forward pass, from all ranks: a collective call."""
    experts = [layer.mlp.experts for layer in layers if hasattr(layer.mlp, "experts")]
    parts: list[Any] = [None] * experts[0].group.size()
    dist.all_gather_object(
        parts,
        [module.ends.diff(prepend=module.ends.new_zeros(1)).tolist() for module in experts],
        group=experts[0].group,
    )
    return [[count for part in parts for count in part[layer]] for layer in range(len(experts))]


def exchanged_experts(self: Any, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Sum over its chosen experts of each of *tokens* (tokens, width); *chosen* and *weights* are (tokens, top_k)."""
    top_k = chosen.size(-1)
    expert, order = torch.sort(chosen.reshape(-1))
    exchange = Exchange(expert, self.num_experts, self.group)
    self.ends = exchange.ends
    rows = exchange.to_experts(tokens[order // top_k])
    inner = self._apply_gate(grouped_mm(rows, self.gate_up_proj.transpose(-2, -1), offs=exchange.ends))
    rows = exchange.home(grouped_mm(inner, self.down_proj.transpose(-2, -1), offs=exchange.ends))
    rows = rows * weights.reshape(-1)[order].unsqueeze(-1)
    return rows[inverse(order)].view(tokens.size(0), top_k, -1).sum(dim=1)


def inverse(order: Tensor) -> Tensor:
    """Where each place went."""
    back = torch.empty_like(order)
    back[order] = torch.arange(order.size(0), device=order.device)
    return back


class Exchange:
    """Where the rows of one micro-batch go, *expert* of each in ascending order."""

    def __init__(self, expert: Tensor, experts: int, group: dist.ProcessGroup) -> None:
        self.group, ranks = group, group.size()
        counts = torch.histc(expert.float() if expert.is_cpu else expert.int(), bins=experts, min=0, max=experts - 1)
        came = torch.empty_like(counts := counts.to(torch.int64))
        dist.all_to_all_single(came, counts, group=group)
        by_source = came.view(ranks, -1)
        self.ends = by_source.sum(0).cumsum(0, dtype=torch.int32)
        self.sent, self.came = torch.stack([counts.view(ranks, -1).sum(1), by_source.sum(1)]).tolist()
        own = torch.arange(experts // ranks, device=came.device).repeat(ranks)
        self.order = own.repeat_interleave(came, output_size=sum(self.came)).argsort(stable=True)
        self.back = inverse(self.order)

    def to_experts(self, rows: Tensor) -> Tensor:
        """Rows to the ranks of their experts, in the order of those."""
        rows = all_to_all_single_autograd(rows, self.came, self.sent, self.group)
        return Reordered.apply(rows, self.order, self.back)

    def home(self, rows: Tensor) -> Tensor:
        """What the experts made of the rows, in the order in which they were sent."""
        rows = Reordered.apply(rows, self.back, self.order)
        return all_to_all_single_autograd(rows, self.sent, self.came, self.group)


class Reordered(torch.autograd.Function):
    """Rows in another order, each once, so that gradients are read back in place of being summed."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, back: Tensor) -> Tensor:
        """*rows* as *order* names them; *back* is its inverse."""
        ctx.save_for_backward(back)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """The gradient in the former order."""
        return gradient[ctx.saved_tensors[0]], None, None
