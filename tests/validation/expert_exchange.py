"""Rows to the ranks of their experts and home, as torchtitan's ExpertParallel sends them.

Ranks first tell each other how many rows each expert gets, in an all-to-all that the host waits for, since the splits
of the next are numbers of the host. Rows and their weights then go by `all_to_all_single`; they come by source rank,
and are put in the order of the experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from kernels.permutation import expert_order, permute, sum_rows

Tensor = torch.Tensor


class _Exchange(torch.autograd.Function):
    """One all-to-all of rows, whose gradients take the opposite way."""

    @staticmethod
    def forward(ctx, rows, sent, received):
        ctx.splits = sent, received
        return _moved(rows, sent, received)

    @staticmethod
    def backward(ctx, gradient):
        sent, received = ctx.splits
        return _moved(gradient.contiguous(), received, sent), None, None


def _moved(rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
    came = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(came, rows, list(received), list(sent))
    return came


def through_experts(
    tokens: Tensor, chosen: Tensor, weights: Tensor, experts: int, compute: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """What the *experts* that each of the *tokens*, [T, D], has *chosen*, [T, K], make of it, summed.

    *compute* takes rows in the order of this rank's experts, the *weights* of those rows, and where each expert's end.
    """
    row, ends = expert_order(chosen, experts)
    rows = permute(tokens, row, row.numel())
    of_rows = _reordered(weights.flatten(), row.flatten())
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    ranks = dist.get_world_size()
    if ranks == 1:
        return sum_rows(compute(rows, of_rows, ends), row)
    came = torch.empty_like(counts)
    dist.all_to_all_single(came, counts)
    came = came.view(ranks, -1)
    sent, received = torch.stack([counts.view(ranks, -1).sum(1), came.sum(1)]).tolist()
    place, ends = _places(came, sum(received))
    rows = permute(_Exchange.apply(rows, sent, received), place[:, None], len(place))
    of_rows = _reordered(_Exchange.apply(of_rows, sent, received), place)
    home = sum_rows(compute(rows, of_rows, ends), place[:, None])
    return sum_rows(_Exchange.apply(home, received, sent), row)


def _reordered(values: Tensor, place: Tensor) -> Tensor:
    """Each of *values* at its *place*."""
    return torch.empty_like(values).scatter(0, place.long(), values)


def _places(came: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Where *rows* rows go that came by source and expert, and each expert's end; [sources, experts] *came*."""
    by_expert = came.T.flatten().cumsum(0).view(came.shape[1], -1)
    begins_by_expert = (by_expert - came.T).T
    begins = came.flatten().cumsum(0) - came.flatten()
    away = (begins_by_expert.flatten() - begins).repeat_interleave(came.flatten(), output_size=rows)
    place = torch.arange(rows, device=came.device) + away
    return place.int(), by_expert[:, -1].int().contiguous()
