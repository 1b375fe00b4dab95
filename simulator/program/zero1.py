"""ZeRO-1, Megatron-LM's distributed optimizer: whole parameters and gradients on every rank, the optimizer sharded.

Gradients add up in one buffer of the reduce dtype over all micro-batches. After the last one they are reduce-scattered,
every rank updates the master weights it owns, and the new parameters are all-gathered. Nothing of that is hidden behind
the backward pass (Megatron-LM without overlap flags). Rajbhandari et al., 2020; Megatron-LM `distrib_optimizer.py`.
"""

from __future__ import annotations

from simulator.engine.task import Allocation
from simulator.hardware.node import Operation
from simulator.program.emitter import Emitter
from simulator.program.fsdp import COMPUTE_BYTES, GATHER, REDUCE
from simulator.program.layout import Layout
from simulator.program.network import Network
from simulator.program.unit import Unit


class Zero1:
    """Writes what data parallelism adds to a program."""

    def __init__(self, emitter: Emitter, network: Network, layout: Layout, *, reduce_bytes: int) -> None:
        self._emitter = emitter
        self._network = network
        self._layout = layout
        self._reduce_bytes = reduce_bytes

    def gather(self, unit: Unit) -> None:
        """Nothing: parameters are whole."""

    def unshard(self, unit: Unit, *, keep_buffers: bool) -> None:
        """Nothing: parameters are whole."""

    def reshard(self, unit: Unit) -> None:
        """Nothing: parameters stay whole."""

    def gradients(self, unit: Unit, weights: tuple[str, ...]) -> list[Allocation]:  # noqa: ARG002, as FSDP's
        """None: they go straight into the resident buffer."""
        return []

    def reduce(self, unit: Unit) -> None:
        """Nothing until the last micro-batch is through."""

    def finish_backward(self) -> None:
        """Nothing is under way."""

    def before_update(self) -> None:
        """Reduce-scatter all gradients, then sum the shards of replicas."""
        for axis, elements in self._trained().items():
            self._collective("reduce_scatter", axis, elements * self._reduce_bytes, REDUCE)
            self._collective("all_reduce", "dp_replicate", elements * self._reduce_bytes / self._ranks(axis), REDUCE)

    def after_update(self) -> None:
        """All-gather the updated parameters."""
        for axis, elements in self._trained().items():
            self._collective("all_gather", axis, elements * COMPUTE_BYTES, GATHER)

    def _collective(self, operation: Operation, axis: str, size: float, stream: str) -> None:
        transfer = self._network.ring(operation, axis, float(size))
        if transfer is not None:
            deps = (self._emitter.last,)
            position = self._emitter.transfer(f"{operation} {axis}", stream, operation, transfer, deps=deps)
            self._emitter.await_(position)

    def _trained(self) -> dict[str, int]:
        """Trained elements by the axis that shares them."""
        total: dict[str, int] = {}
        for group in self._layout.groups:
            if group.trained_elements:
                total[group.axis] = total.get(group.axis, 0) + group.trained_elements
        return total

    def _ranks(self, axis: str) -> int:
        return next(group.ranks for group in self._layout.groups if group.axis == axis)
