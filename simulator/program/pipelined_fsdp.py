"""FSDP2 beneath PyTorch's pipeline stages: gathered parameters and whole gradients stay until the last micro-batch.

`torch/distributed/pipelining/stage.py` turns resharding and reducing off behind every backward pass and does both once
the last one is through. Parameters are freed behind forward passes alone, if at all, and gradients are summed whole, in
the format in which they are reduced: 4 bytes for each parameter of the stage. What few communications that leaves is
paid for in memory.
"""

from __future__ import annotations

from typing import Any

from simulator.model.operator import Kernel
from simulator.parallel.sharding import ShardGroup
from simulator.program.emitter import tensors
from simulator.program.fsdp import COMPUTE_BYTES, Fsdp
from simulator.program.unit import Unit


class PipelinedFsdp(Fsdp):
    """Writes the FSDP tasks of a pipeline stage's program."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._postponed: dict[str, Unit] = {}

    def reshard(self, unit: Unit) -> None:
        """Free the unsharded parameters of *unit* behind its forward pass."""
        if self._emitter.phase == "forward":
            super().reshard(unit)

    def reduce(self, unit: Unit) -> None:
        """Add the gradients of *unit* to those of earlier micro-batches."""
        self._postponed[unit.name] = unit
        for group in unit.groups:
            if group.trained_elements and self._is_copied(group) and self._reduce_bytes != COMPUTE_BYTES:
                self._sum(unit, group)

    def before_update(self) -> None:
        """Free the parameters and reduce the gradients of all units, the root's first."""
        for unit in reversed(self._postponed.values()):
            super().reshard(unit)
            super().reduce(unit)
        self._postponed.clear()
        self.finish_backward()

    def _copy_in_bytes(self, group: ShardGroup) -> float:
        return float(group.trained_elements * self._reduce_bytes)

    def _sum(self, unit: Unit, group: ShardGroup) -> None:
        """Cast the first gradients of a *group* of *unit*, and add later ones; those in bf16 are then free.

        They are summed as they are made: DTensor's of an embedding, whole on each tp rank.
        """
        key = f"summed.{group.name}"
        first = not self._emitter.holds(key)
        width = COMPUTE_BYTES + self._reduce_bytes * (1 if first else 2)
        elements = [made for name, made in unit.trained.values() if name == group.name and made]
        traffic = float(sum(elements) * width)
        kernel = Kernel("cast_up" if first else "elementwise", 0.0, traffic, launches=len(group.trained))
        sizes = [float(made * self._reduce_bytes) for made in elements]
        self._emitter.compute(
            f"sum {group.name}",
            kernel.kind,
            self._costs.price(kernel),
            allocates=[tensors(key, "gradients", sizes)] if first else [],
        )
        self._emitter.release(*(made for made in self._made.get(group.name, []) if made != key))
        self._made[group.name] = [key]
