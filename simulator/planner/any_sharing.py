"""What holds of a pipeline however its layers lie on its stages: the least that the busiest and the fullest stage has.

The busiest stage has no less than the mean one. Where stages are weighed by what adds up to 1, the fullest holds no
less than the weighed mean, in which each layer counts with the stage where it would count least. Stages that hold more
micro-batches at once are weighed less, so that layers count nearly alike wherever they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simulator.model.architecture import Architecture
from simulator.planner.orders import Order
from simulator.planner.splits import Column
from simulator.planner.stages import Edges, Values


@dataclass(frozen=True, slots=True)
class Kinds:
    """Pieces of a model cut so that one layer of each kind is a piece of its own.

    The first piece has the embedding alone, the last one the prediction modules and the head.
    """

    edges: Edges
    at: Column
    """The piece of each kind."""
    layers: Column
    """How many layers are of that kind."""

    @classmethod
    def of(cls, architecture: Architecture) -> Kinds:
        """Those of *architecture*, whose layers differ in no more than the number of blocks that they mix."""
        makes = [replace(one, index=0, residual_blocks=min(1, one.residual_blocks)) for one in architecture.layers]
        first = [makes.index(make) for make in dict.fromkeys(makes)]
        count, modules = len(makes), architecture.mtp_layers
        cuts = sorted({0, count, *first, *(number + 1 for number in first)})
        at = [1 + cuts.index(number) for number in first]
        edges = [0, *cuts, count + modules]
        return cls(np.array(edges), np.array(at), np.array([makes.count(makes[number]) for number in first]))


@dataclass(frozen=True, slots=True)
class Pieces:
    """Bytes of pieces of a model, [splits, pieces]: what a stage has of each once, and for each micro-batch alive."""

    once: Values
    each: Values


def least_held(kinds: Kinds, pieces: Pieces, order: Order, alive: Values) -> Values:
    """Bytes of the fullest stage at least, of *pieces* alone, where so many micro-batches are *alive*,
    [splits, stages, chunks].
    """
    once, each = (values[:, kinds.at] * kinds.layers for values in (pieces.once, pieces.each))
    in_all = once.sum(axis=1)[:, None] + alive.mean(axis=2) * each.sum(axis=1)[:, None]
    weight = 1 / np.maximum(in_all, 1.0)
    weight /= weight.sum(axis=1, keepdims=True)
    virtual = order.pipeline.virtual_stages
    once_at, each_at = (np.zeros((len(once), virtual)) for _ in range(2))
    for stage, held in enumerate(order.held):
        for chunk, number in enumerate(held):
            once_at[:, number] += weight[:, stage]
            each_at[:, number] += weight[:, stage] * alive[:, stage, chunk]
    least = np.full_like(once, np.inf)
    for number in range(virtual):
        counted = once_at[:, [number]] * once + each_at[:, [number]] * each
        least = np.minimum(least, counted)
    ends = once_at[:, 0] * pieces.once[:, 0] + once_at[:, -1] * pieces.once[:, -1]
    return np.asarray(least.sum(axis=1) + ends)


def times_the_mean(order: Order, micro_batches: Column) -> Values:
    """How often the work of one micro-batch on all stages fits into the time of the busiest stage, at least.

    Where stage s begins behind a forward and ends before a backward pass of all s ahead of it, x_s for each of m
    micro-batches makes m x_s + sum of x_t over t < s; with P stages the largest of these is least where all are equal,
    the sum of x over 1 - (1 - 1 / m)^P. Elsewhere it is no less than the mean.
    """
    stages = order.pipeline.stages
    if order.returns and order.pipeline.chunks == 1 and not order.weaves:
        return np.asarray(1 / (1 - (1 - 1 / micro_batches) ** stages))
    return np.asarray(micro_batches / stages)
