"""Shards over fewer ranks that FSDP2 keeps from forward to backward (`reshard_after_forward: N`).

When a unit is freed after forward, every rank clones its part of the gathered parameters, one of N instead of one of
all that share them; the next gather is among those N consecutive ranks, which may be one node. Then the part goes
(PyTorch 2.14 `_fsdp_param.py`, `to_sharded_post_forward`). A group of N ranks or fewer is freed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from simulator.model.operator import Kernel
from simulator.parallel.mesh import within_axis
from simulator.parallel.sharding import ShardGroup
from simulator.program.costs import Costs
from simulator.program.emitter import Emitter, allocation


class PostForward:
    """The parts that are held; none where *ranks* is 1."""

    def __init__(self, emitter: Emitter, costs: Costs, ranks: int) -> None:
        self._emitter = emitter
        self._costs = costs
        self._ranks = ranks

    def keep(self, groups: Iterable[ShardGroup]) -> None:
        """Clone the parts of *groups*, which are gathered."""
        kept = [group for group in groups if 1 < self._ranks < group.ranks]
        if not kept:
            return
        parts = [allocation(_key(group), "gathered parameters", self.part_bytes(group)) for group in kept]
        traffic = 2.0 * sum(self.part_bytes(group) for group in kept)
        clone = self._costs.price(Kernel("copy", 0.0, traffic, launches=sum(group.parameters for group in kept)))
        self._emitter.compute("keep parts", "copy", clone, allocates=parts)

    def holds(self, group: ShardGroup) -> bool:
        """Whether the next gather of *group* starts from its part."""
        return self._emitter.holds(_key(group))

    def axis(self, group: ShardGroup) -> str:
        """The axis along which *group* is gathered."""
        return within_axis(group.axis) if self.holds(group) else group.axis

    def part_bytes(self, group: ShardGroup) -> float:
        """Bytes of a rank's part of *group*."""
        return group.gathered_bytes / self._ranks

    def drop(self, groups: Iterable[ShardGroup]) -> None:
        """Free the parts of *groups*, which are gathered again."""
        self._emitter.release(*(_key(group) for group in groups if self.holds(group)))


def _key(group: ShardGroup) -> str:
    return f"post-forward.{group.name}"
