"""Routed experts spread over ranks: whole experts each, rows by all-to-all, as torchtitan's `ExpertParallel` does it.

What runs is Hugging Face's `grouped_mm_experts_forward` with an exchange in its middle, less the masks that are there
for its own way of splitting experts: rows are sorted by expert, ranks tell each other how many rows each expert gets,
the host reads those counts, rows go to their ranks, are put in the order of experts, computed, and take the same way
home.
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
    dist.all_gather_object(parts, [module.received for module in experts], group=experts[0].group)
    return [[count for part in parts for count in part[layer]] for layer in range(len(experts))]


def exchanged_experts(self: Any, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Sum over its chosen experts of each of *tokens* (tokens, width); *chosen* and *weights* are (tokens, top_k)."""
    top_k = chosen.size(-1)
    expert, order = torch.sort(chosen.reshape(-1))
    exchange = Exchange(expert, self.num_experts, self.group)
    self.received = exchange.received
    rows = exchange.to_experts(tokens[order // top_k])
    inner = self._apply_gate(grouped_mm(rows, self.gate_up_proj.transpose(-2, -1), offs=exchange.ends))
    rows = exchange.home(grouped_mm(inner, self.down_proj.transpose(-2, -1), offs=exchange.ends))
    rows = rows * weights.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.size(0), device=order.device)
    return rows[back].view(tokens.size(0), top_k, -1).sum(dim=1)


class Exchange:
    """Where the rows of one micro-batch go, *expert* of each in ascending order."""

    def __init__(self, expert: Tensor, experts: int, group: dist.ProcessGroup) -> None:
        self.group, ranks = group, group.size()
        counts = torch.histc(expert.float() if expert.is_cpu else expert.int(), bins=experts, min=0, max=experts - 1)
        sent = counts.to(torch.int64)
        came = torch.empty_like(sent)
        dist.all_to_all_single(came, sent, group=group)
        self.ends = came.view(ranks, -1).sum(0).cumsum(0, dtype=torch.int32)
        sent_of, came_of = torch.stack([sent, came]).view(2, ranks, -1).tolist()
        self.sent = [sum(of_rank) for of_rank in sent_of]
        self.came = [sum(of_rank) for of_rank in came_of]
        self.chunks = [count for of_rank in came_of for count in of_rank]
        self.received = [sum(of_expert) for of_expert in zip(*came_of, strict=True)]

    def to_experts(self, rows: Tensor) -> Tensor:
        """Rows to the ranks of their experts, in the order of those."""
        rows = all_to_all_single_autograd(rows, self.came, self.sent, self.group)
        return transposed(rows, self.chunks, len(self.came))

    def home(self, rows: Tensor) -> Tensor:
        """What the experts made of the rows, in the order in which they were sent."""
        ranks = len(self.came)
        experts = len(self.chunks) // ranks
        by_expert = [self.chunks[source * experts + expert] for expert in range(experts) for source in range(ranks)]
        return all_to_all_single_autograd(transposed(rows, by_expert, experts), self.sent, self.came, self.group)


def transposed(rows: Tensor, chunks: list[int], outer: int) -> Tensor:
    """*rows* are *outer* groups of as many chunks each, of *chunks* rows; first all first chunks, then the second."""
    parts, inner = torch.split(rows, chunks), len(chunks) // outer
    return torch.cat([parts[group * inner + one] for one in range(inner) for group in range(outer)])
