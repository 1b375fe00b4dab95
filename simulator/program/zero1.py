"""ZeRO-1, Megatron-LM's distributed optimizer: whole parameters and gradients on every rank, the optimizer sharded.

Gradients add up in one buffer of the reduce dtype over all micro-batches. After the last one they are reduce-scattered,
every rank updates the master weights it owns, and the new parameters are all-gathered. Nothing of that is hidden behind
compute unless asked for (`zero1_overlap.py`): then reductions run beside the last backward pass, with what is done to
gradients before, and gathers beside the next step's first forward pass. Rajbhandari et al., 2020; Megatron-LM
`distrib_optimizer.py`.

Beside the update itself, a step passes over memory so often, in bytes an element, where R is the reduce dtype's size:

- the whole buffer: zeroed R (write), its norm looked at for NaN R (read), scaled by one over the ranks that share the
  batch 2 R (read, write; not where they are one);
- the owned share: gradients cast to fp32 2 + 4 (only where R is 2), their norm 4 (read), clipping 8 (read, write), and
  new master weights copied into bf16 parameters 4 + 2 (only where there are master weights).

With R = 4 that is 16 bytes for each element of the buffer and 18 for each owned one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from simulator.engine.task import Allocation
from simulator.hardware.collective import Operation
from simulator.model.operator import Kernel
from simulator.parallel.sharding import ShardGroup
from simulator.program.costs import Costs
from simulator.program.emitter import Emitter, allocation
from simulator.program.fsdp import COMPUTE_BYTES, GATHER, REDUCE
from simulator.program.gradient_norm import bound_norm, format_of
from simulator.program.layout import Layout
from simulator.program.network import Network
from simulator.program.unit import Unit
from simulator.program.whole_parameters import WholeParameters
from simulator.program.zero1_overlap import ALONE, BucketGathers, BucketReductions, Overlap

FP32_BYTES = 4


class Zero1(WholeParameters):
    """Writes what data parallelism adds to a program.

    *reduce_bytes* and *stored_bytes*: of an element of the buffer, and of a parameter that is updated. *made*: weights
    whose gradients are tensors for a moment. *averaged*: whether several ranks share the batch. *casts*: the passes
    over weights that make the fp8 copies which the next step multiplies with. *copies*: two stages that hold the same
    layers, the lower one first, one of which this is; each owns half of what it would own alone. *overlap*: what runs
    beside the passes of *micro_batches*.
    """

    def __init__(
        self,
        emitter: Emitter,
        costs: Costs,
        network: Network,
        layout: Layout,
        *,
        reduce_bytes: int,
        stored_bytes: int,
        made: Set[str],
        averaged: bool,
        casts: Sequence[Kernel] = (),
        copies: tuple[int, int] | None = None,
        overlap: Overlap = ALONE,
        micro_batches: int = 1,
    ) -> None:
        self._emitter = emitter
        self._costs = costs
        self._network = network
        self._layout = layout
        self._reduce_bytes = reduce_bytes
        self._stored_bytes = stored_bytes
        self._made = made
        self._averaged = averaged
        self._casts = casts
        self._copies = copies
        self._last = micro_batches - 1
        self._reductions: BucketReductions | None = None
        self._gathers: BucketGathers | None = None
        if overlap.reduced is not None:
            self._reductions = BucketReductions(self._reduce_bucket, overlap.reduced, overlap.limit, overlap.late)
        if overlap.gathered is not None:
            self._gathers = BucketGathers(emitter, self._gather_bucket, overlap.gathered)

    def unshard(self, unit: Unit, *, keep_buffers: bool) -> None:
        """Wait for the parameters of *unit*, the first time in a step that gathers them beside compute."""
        if self._gathers is not None and keep_buffers:
            self._gathers.need(unit)

    def gradients(self, unit: Unit, weights: tuple[str, ...]) -> list[Allocation]:
        """Gradients that are tensors until they are in the buffer; the others go straight into it."""
        if self._reductions is not None and self._emitter.micro_batch == self._last:
            self._reductions.make(unit, weights)
        return [
            allocation(f"gradient.{unit.name}.{name}", "workspace", float(unit.trained[name][1] * COMPUTE_BYTES))
            for name in weights
            if name in self._made and unit.trained[name][1]
        ]

    def reduce(self, unit: Unit) -> None:
        """Nothing: a whole bucket is reduced at a time, or all at the end."""

    def finish_backward(self) -> None:
        """Reduce what is left of the chunk."""
        if self._reductions is not None and self._emitter.micro_batch == self._last:
            self._reductions.end_chunk()

    def before_update(self) -> None:
        """Have all gradients reduced, and bound the norm of what the rank owns."""
        if self._reductions is not None:
            self._await(self._reductions.finish())
        else:
            self._reduce_all()
        bound_norm(
            self._emitter,
            self._costs,
            self._layout.ownership.elements,
            self._layout.trained_tensors,
            summed_bytes=self._reduce_bytes,
            bounded_bytes=FP32_BYTES,
        )

    def after_update(self) -> None:
        """All-gather the updated parameters, cast those that are multiplied in fp8, and empty the buffer."""
        recast = sum(len(group.recast(self._stored_bytes)) for group in self._layout.groups)
        if recast:
            width = sum(self._gathered(self._layout.groups).values()) / sum(self._trained().values())
            traffic = self._layout.ownership.elements * (self._stored_bytes + width)
            self._pass("copy parameters", "cast_down", traffic, launches=recast)
        for axis, size in self._gathered(self._layout.groups).items() if self._gathers is None else ():
            self._swap("parameters", axis, size / self._ranks(axis))
            self._await(self._collective("all_gather", axis, size, GATHER))
        for kernel in self._casts:
            self._emitter.compute("cast weights", kernel.kind, self._costs.price(kernel))
        self._pass("zero gradients", "fill", sum(self._trained().values()) * self._reduce_bytes)

    def _reduce_all(self) -> None:
        """Reduce-scatter all gradients, and sum the shards of replicas."""
        self._prepare(sum(self._trained().values()))
        for axis, elements in self._trained().items():
            shard_bytes = elements * self._reduce_bytes / self._ranks(axis)
            self._await(self._collective("reduce_scatter", axis, elements * self._reduce_bytes, REDUCE))
            self._await(self._collective("all_reduce", "dp_replicate", shard_bytes, REDUCE))
            self._swap("gradients", axis, shard_bytes)

    def _reduce_bucket(self, axis: str, elements: int) -> list[int]:
        """The same of a bucket, while compute goes on."""
        self._prepare(elements)
        size = float(elements * self._reduce_bytes)
        scattered = self._collective("reduce_scatter", axis, size, REDUCE)
        summed = self._collective("all_reduce", "dp_replicate", size / self._ranks(axis), REDUCE)
        return [*scattered, *summed]

    def _gather_bucket(self, units: Sequence[Unit]) -> list[int]:
        """Gather parameters of *units* while compute goes on."""
        sizes = self._gathered(group for unit in units for group in unit.groups)
        return [at for axis, size in sizes.items() for at in self._collective("all_gather", axis, size, GATHER)]

    def _prepare(self, elements: int) -> None:
        """Look for NaN, and scale to a mean."""
        self._pass("check for NaN", "reduction", elements * self._reduce_bytes)
        if self._averaged:
            self._pass("scale gradients", "elementwise", elements * 2 * self._reduce_bytes)

    def _pass(self, name: str, kind: str, traffic: float, *, launches: int = 1) -> None:
        """One pass of *traffic* bytes over memory in so many equal kernels."""
        priced = self._costs.price(Kernel(kind, 0.0, float(traffic), dtype=format_of(self._reduce_bytes)))
        self._emitter.compute(name, kind, replace(priced, launches=launches))

    def _collective(self, operation: Operation, axis: str, size: float, stream: str) -> list[int]:
        """A collective behind the task written last; its position, if there is anything to send."""
        transfer = self._network.ring(operation, axis, float(size))
        if transfer is None:
            return []
        deps = (self._emitter.last,) if self._emitter.tasks else ()
        return [self._emitter.transfer(f"{operation} {axis}", stream, operation, transfer, deps=deps)]

    def _await(self, positions: Iterable[int]) -> None:
        for position in positions:
            self._emitter.await_(position)

    def _swap(self, what: str, axis: str, size: float) -> None:
        """Halves of shards of *size* bytes between the copies, both ways at once."""
        if self._copies is None:
            return
        transfer = self._network.hand_over(size / 2, f"{what} {axis} {self._copies}", *self._copies)
        deps = (self._emitter.last,)
        self._emitter.await_(self._emitter.transfer(f"swap {what}", REDUCE, transfer.kind, transfer, deps=deps))

    def _trained(self) -> dict[str, int]:
        """Trained elements by the axis that shares them."""
        total: dict[str, int] = {}
        for group in self._layout.groups:
            if group.trained_elements:
                total[group.axis] = total.get(group.axis, 0) + group.trained_elements
        return total

    def _gathered(self, groups: Iterable[ShardGroup]) -> dict[str, int]:
        """Bytes of trained parameters of *groups* as they are gathered, by the axis that shares them."""
        total: dict[str, int] = {}
        for group in groups:
            if group.trained:
                size = sum(share.elements * share.width for share in group.trained)
                total[group.axis] = total.get(group.axis, 0) + size
        return total

    def _ranks(self, axis: str) -> int:
        return next(group.ranks for group in self._layout.groups if group.axis == axis)
