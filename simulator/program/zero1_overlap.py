"""Megatron-LM's distributed optimizer beside compute: reductions of gradients, gathers of parameters.

Mechanism as in `core/distributed/distributed_data_parallel.py` and `param_and_grad_buffer.py`. Weights of a chunk lie
in buckets. In the backward pass of the last micro-batch a bucket is reduced once all its gradients are there. Before
the first forward pass through a bucket its parameters are waited for, and the next bucket's gather begins. The first
chunk of the first stage is cut into buckets of 40 million elements, or of a million for each rank that shares them if
that is more; every other chunk is one bucket. Gathers are cut between layers here, and both ends of a model that one
chunk holds are gathered together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from simulator.program.emitter import Emitter
from simulator.program.unit import Unit

Reduce = Callable[[str, int], list[int]]
"""Begins to reduce so many elements along an axis, and returns the positions of what is to be waited for."""
Gather = Callable[[Sequence[Unit]], list[int]]
"""Begins to gather the parameters of units, and returns the same."""


@dataclass(frozen=True, slots=True)
class DistributedOptimizer:
    """How Megatron-LM's distributed optimizer was asked to run."""

    fused_accumulation: bool = True
    """Whether matmuls of weights' gradients add into the buffer themselves."""
    overlaps_reductions: bool = False
    overlaps_gathers: bool = False


@dataclass(frozen=True, slots=True)
class Overlap:
    """What of a stage runs beside compute; None: not beside it."""

    reduced: Set[str] | None = None
    """Names of the units that are cut into several buckets of gradients."""
    gathered: Sequence[Sequence[Unit]] | None = None
    """Units of each bucket of parameters, in the order of the forward pass."""
    limit: int = 0
    """Elements that close a bucket."""
    late: Set[str] = frozenset()
    """Weights that are used twice."""


ALONE = Overlap()


def bucket_elements(ranks: int) -> int:
    """Elements that close a bucket which *ranks* share."""
    return max(40_000_000, 1_000_000 * ranks)


class BucketReductions:
    """Reduces buckets as they fill. Those of *cut* units close at *limit* elements; *late* weights are used twice."""

    def __init__(self, start: Reduce, cut: Set[str], limit: int, late: Set[str]) -> None:
        self._start = start
        self._cut = cut
        self._limit = limit
        self._late = late
        self._seen: set[tuple[str, str]] = set()
        self._made: list[tuple[Unit, str]] = []
        self._held_back: list[tuple[Unit, str]] = []
        self._filled: dict[str, int] = {}
        self._under_way: list[int] = []

    def make(self, unit: Unit, names: Iterable[str]) -> None:
        """Put those made before into their buckets, and note the gradients of *names*, which come now."""
        self._put()
        for name in names:
            if unit.trained[name][1] and (unit.name, name) not in self._seen:
                self._seen.add((unit.name, name))
                (self._held_back if name in self._late else self._made).append((unit, name))

    def end_chunk(self) -> None:
        """Reduce what is left of a chunk."""
        self._made += self._held_back
        self._held_back = []
        self._put()
        for axis in list(self._filled):
            self._close(axis)

    def finish(self) -> list[int]:
        """What is to be waited for before the update."""
        self.end_chunk()
        return self._under_way

    def _put(self) -> None:
        made, self._made = self._made, []
        for unit, name in made:
            group, elements = unit.trained[name]
            axis = next(one.axis for one in unit.groups if one.name == group)
            self._filled[axis] = self._filled.get(axis, 0) + elements
            if unit.name in self._cut and self._filled[axis] >= self._limit:
                self._close(axis)

    def _close(self, axis: str) -> None:
        self._under_way += self._start(axis, self._filled.pop(axis))


class BucketGathers:
    """Gathers *buckets* of units one ahead of the first forward pass."""

    def __init__(self, emitter: Emitter, start: Gather, buckets: Sequence[Sequence[Unit]]) -> None:
        self._emitter = emitter
        self._start = start
        self._buckets = buckets
        self._waiting = {unit.name: number for number, bucket in enumerate(buckets) for unit in bucket}
        self._under_way: dict[int, list[int]] = {}

    def need(self, unit: Unit) -> None:
        """Wait for the bucket of *unit* if nobody has, and begin the next one."""
        number = self._waiting.get(unit.name)
        if number is None:
            return
        for position in self._begun(number):
            self._emitter.await_(position)
        self._waiting = {name: other for name, other in self._waiting.items() if other != number}
        if number + 1 < len(self._buckets):
            self._begun(number + 1)

    def _begun(self, number: int) -> list[int]:
        if number not in self._under_way:
            self._under_way[number] = self._start(self._buckets[number])
        return self._under_way[number]


def buckets(chunks: Sequence[Sequence[Unit]], limit: int, *, cut: bool) -> Iterator[tuple[Unit, ...]]:
    """The units of each chunk as a bucket; of the first chunk, where it is *cut*, buckets of *limit* elements."""
    for number, chunk in enumerate(chunks):
        if not (cut and number == 0):
            yield tuple(chunk)
            continue
        bucket: list[Unit] = []
        for unit in chunk:
            bucket.append(unit)
            if sum(group.trained_elements for one in bucket for group in one.groups) >= limit:
                yield tuple(bucket)
                bucket = []
        if bucket:
            yield tuple(bucket)
