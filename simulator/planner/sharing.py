"""Sharing: how the layers of a model lie on the stages of a pipeline so that the slowest stage takes least.

The ends of a model have more than layers: embedding and images, loss, prediction modules. So the first and the last
virtual stage may have any number of layers, up to one more than an even share, and those between share the others
evenly. Of all these cuts those that have room on every stage are compared, by what a micro-batch takes: the slowest
stage, of interleaved ones the slowest for each chunk in turn, since all stages go through the same chunk together; with
two models in opposite directions a stage has its two virtual stages at once. Where several take the least, the even one
is kept, else the one with least memory is taken: the bounds that rooms are judged by are below what a stage will need.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

from simulator.planner.orders import Order
from simulator.planner.stages import Edges, Values
from simulator.program.pipeline import Pipeline

Cut = tuple[int, ...]
"""Layers of each virtual stage."""
_AT_ONCE = 1_000_000
"""Virtual stages of all cuts of some splits that are compared together."""
_ALIKE = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one moment: of each piece *once* and of *each* micro-batch that is alive, [splits, pieces], of which
    there are *alive*, [splits, stages, chunks], and *beside* them on any stage, [splits].

    The first piece is what lies before the first layer and the last one what lies behind the last; those in between
    are layers.
    """

    once: Values
    each: Values
    alive: Values
    beside: Values

    def of(self, which: slice) -> Held:
        """The splits that *which* names."""
        return Held(*(getattr(self, name)[which] for name in self.__slots__))


def share(order: Order, seconds: tuple[Values, ...], moments: tuple[Held, ...], room_bytes: float) -> list[Cut]:
    """Layers of each virtual stage of splits in one *order*, whose pieces take so many *seconds* a micro-batch of each
    stream, the device's and the host's, [splits, pieces]; empty: as even as can be, where nothing is faster or nothing
    fits.
    """
    splits, pieces = seconds[0].shape
    tried, edges = cuts(pieces - 2, order.pipeline)
    at_once = max(1, _AT_ONCE // edges.size)
    found: list[Cut] = []
    for start in range(0, splits, at_once):
        some = slice(start, start + at_once)
        time_s = np.max([_time_s(order, _over_cuts(stream[some], edges)) for stream in seconds], axis=0)
        held = np.max([_bytes(order, moment.of(some), edges) for moment in moments], axis=0)
        time_s[held > room_bytes] = np.inf
        least = time_s <= time_s.min(axis=1, keepdims=True) * _ALIKE
        chosen = np.where(least[:, 0], 0, np.where(least, held, np.inf).argmin(axis=1))
        found += [tried[number] if number else () for number in chosen.tolist()]
    return found


@cache
def cuts(layers: int, pipeline: Pipeline) -> tuple[tuple[Cut, ...], Edges]:
    """Cuts of so many *layers* that are tried, the even one first, and of each the first piece of every virtual stage
    and one past the last, [cuts, virtual stages + 1].
    """
    stages = pipeline.virtual_stages
    most = range(layers + 1 if stages == 2 else -(-layers // stages) + 2)
    ends = [(first, last) for first, last in product(most, most) if stages > 2 or first + last == layers]
    found = [tuple(np.diff(pipeline.edges(layers)).tolist())]
    for first, last in ends:
        between = layers - first - last
        if between >= 0:
            each, more = divmod(between, max(1, stages - 2))
            found.append((first, *(each + (number < more) for number in range(stages - 2)), last))
    distinct = tuple(dict.fromkeys(found))
    inner = 1 + np.cumsum(distinct, axis=1)[:, :-1]
    outer = np.full((len(distinct), 1), layers + 2)
    return distinct, np.concatenate([np.zeros_like(outer), inner, outer], axis=1)


def _over_cuts(values: Values, edges: npt.NDArray[np.int64]) -> Values:
    """Sums of *values* [splits, pieces] over virtual stages of cuts, [splits, cuts, virtual stages]."""
    until = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    return np.asarray(until[:, edges[:, 1:]] - until[:, edges[:, :-1]])


def _time_s(order: Order, seconds: Values) -> Values:
    """Seconds of a micro-batch on all chunks of a stage, [splits, cuts]."""
    by_chunk = seconds[..., order.held]
    if order.pipeline.mirrored:
        return np.asarray(by_chunk.sum(axis=3).max(axis=2))
    return np.asarray(by_chunk.max(axis=2).sum(axis=2))


def _bytes(order: Order, moment: Held, edges: Edges) -> Values:
    """Bytes of the fullest stage at one *moment*, [splits, cuts]."""
    once, each = (_over_cuts(amount, edges)[..., order.held] for amount in (moment.once, moment.each))
    of_stages = (once + moment.alive[:, None] * each).sum(axis=3)
    return np.asarray(of_stages.max(axis=2) + moment.beside[:, None])
