"""Who updates what: a rank's part of every trained tensor, and the hidden matrices it orthogonalises whole.

A rule that needs whole matrices hands each to one rank. Largest first, to the rank with the fewest elements so far
(Graham's longest processing time first), as Megatron-LM's `layer_wise_optimizer.py` does; the rank with the most is
told. Under ZeRO-1 that rank also owns them, and the reduce-scatter brings it their gradients whole. Under FSDP2 every
rank keeps its rows: they travel to the one in charge and back (Megatron-LM `fully_shard_v2_muon.py`). Under DDP every
rank does all of them, as `torch.optim.Muon` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from heapq import heapify, heapreplace

from simulator.parallel.sharding import Matrix, ShardGroup, Share
from simulator.program.job import Job
from simulator.program.update import Owned, Ownership

_WHOLE_MATRICES = ("muon",)
"""Rules that orthogonalise."""


def ownership(job: Job, groups: tuple[ShardGroup, ...]) -> Ownership:
    """What the rank with the most to do updates of the trained tensors of *groups*, in their order."""
    whole = job.optimizer.name in _WHOLE_MATRICES
    hidden = _by_axis(groups) if whole else {}
    matrices = [m for stacks, ranks in hidden.values() for m in (fullest_share(stacks, ranks) if job.zero else stacks)]
    tensors = [
        Owned(_part(job.zero, share, group.ranks * job.pipeline.copies), share.matrix is not None)
        for group in groups
        for share in group.trained
        if not (whole and job.zero == 1 and share.matrix is not None)
    ]
    if job.zero == 2:
        tensors = [Owned(sum(tensor.elements for tensor in tensors), matrix=False)]
    if whole and job.zero == 1:
        tensors += [Owned(float(m.rows * m.columns), matrix=True) for m in matrices for _ in range(m.count)]
    travelling = _travelling(groups) if whole and job.zero == 3 else {}
    return Ownership(tuple(tensors), tuple(matrices), tuple(travelling.items()))


def _by_axis(groups: tuple[ShardGroup, ...]) -> dict[str, tuple[tuple[Matrix, ...], int]]:
    """Hidden matrices, and the ranks that share them, by axis."""
    found: dict[str, tuple[tuple[Matrix, ...], int]] = {}
    for group in groups:
        before, _ = found.get(group.axis, ((), 0))
        mine = tuple(share.matrix for share in group.trained if share.matrix is not None)
        found[group.axis] = (*before, *mine), group.ranks
    return found


def _travelling(groups: tuple[ShardGroup, ...]) -> dict[str, float]:
    """Elements of shards of hidden matrices by axis, where several ranks share them."""
    moved: dict[str, float] = {}
    for group in groups:
        shards = sum(share.shard for share in group.trained if share.matrix is not None)
        if group.ranks > 1 and shards:
            moved[group.axis] = moved.get(group.axis, 0.0) + shards
    return moved


def _part(zero: int, share: Share, ranks: int) -> float:
    """Elements of a tensor that a rank owns: its padded shard, its part of a flat buffer, or all."""
    if zero == 3:
        return float(share.shard)
    return share.elements / ranks if zero else float(share.elements)


@cache
def fullest_share(stacks: tuple[Matrix, ...], ranks: int) -> tuple[Matrix, ...]:
    """The matrices that the rank with the most elements of them is in charge of."""
    single = sorted(_one_by_one(stacks), key=lambda shape: shape[0] * shape[1], reverse=True)
    loads = [(0, rank) for rank in range(ranks)]
    heapify(loads)
    held: list[dict[tuple[int, int], int]] = [{} for _ in range(ranks)]
    for rows, columns in single:
        load, rank = loads[0]
        heapreplace(loads, (load + rows * columns, rank))
        held[rank][rows, columns] = held[rank].get((rows, columns), 0) + 1
    fullest = max(loads)[1] if single else 0
    return tuple(Matrix(rows, columns, count) for (rows, columns), count in held[fullest].items())


def _one_by_one(stacks: Iterable[Matrix]) -> list[tuple[int, int]]:
    return [(stack.rows, stack.columns) for stack in stacks for _ in range(stack.count)]
