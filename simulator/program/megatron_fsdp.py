"""Megatron-FSDP: parameters that are views of what is gathered, gradients made where they are reduced from.

Mechanism as in megatron-core 0.16.1 `core/distributed/fsdp/src/megatron_fsdp` (`optim_grads_params`). Each group of a
layer's parameters is one flat shard in bf16, which an all-gather writes into one flat bucket whose views the parameters
are: nothing is cast or copied before the gather or behind it, and the bucket is freed once the layer is through.
Matmuls write gradients of weights into a bucket in the format of the reduction (`overwrite_main_grad`), which is scaled
as it is summed where that is fp32, else in a pass before; hooks copy the few others there. A reduction waits for no
other until 10^9 elements, or those of two layers, are under way. Its result is added to a shard that stays.

FSDP2 keeps shards in the format of the optimizer alone; here fp32 master weights are beside the shards, which are kept
as they are gathered, in bf16 or fp8, and into which they are narrowed behind the update, with scales found as under
FSDP2. Before it the norm of gradients is bounded. No pass looks for NaN (`check_nans` is off). What adds the shard's
share up, 1 / ranks of a layer, takes no time here.
"""

from __future__ import annotations

from typing import Any

from simulator.engine.task import Allocation
from simulator.hardware.collective import Operation
from simulator.model.operator import Kernel
from simulator.parallel.sharding import ShardGroup
from simulator.program.emitter import allocation
from simulator.program.fsdp import COMPUTE_BYTES, GATHER, REDUCE, Fsdp
from simulator.program.gradient_norm import bound_norm, format_of
from simulator.program.layout import Layout
from simulator.program.unit import Unit

FP32_BYTES = 4
_PENDING_ELEMENTS = 1_000_000_000
_PENDING_LAYERS = 2


class MegatronFsdp(Fsdp):
    """Writes the FSDP tasks of a program of *layout*; gradients of *made* weights are tensors before a hook's copy."""

    def __init__(self, *args: Any, layout: Layout, made: frozenset[str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._layout = layout
        self._made_first = made
        layers = [sum(group.elements for group in unit.groups) for unit in layout.layers]
        self._most_pending = max(_PENDING_ELEMENTS, _PENDING_LAYERS * max(layers, default=0))
        self._pending: list[tuple[int, str, int]] = []

    def _gather(self, unit: Unit, *, ahead: bool) -> None:  # noqa: ARG002 - both begin where they are issued
        """Into the bucket that the parameters are views of, behind the compute that was issued before."""
        self._gathers[unit.name] = {}
        ready = self._emitter.computed
        for group in self._copied(unit):
            size = float(group.gathered_bytes)
            transfer = self._ring("all_gather", group.axis, size)
            if transfer is not None:
                bucket = allocation(_whole(group), "gathered parameters", size, pool=GATHER)
                position = self._emitter.transfer(
                    f"all-gather {group.name}", GATHER, "all_gather", transfer, deps=ready, allocates=[bucket]
                )
                self._gathers[unit.name][position] = bucket.key

    def unshard(self, unit: Unit, *, keep_buffers: bool) -> None:  # noqa: ARG002 - what was gathered is used itself
        """Wait for the gathers of *unit*."""
        self.gather(unit)
        for position in self._gathers[unit.name]:
            self._emitter.await_(position)

    def gradients(self, unit: Unit, weights: tuple[str, ...]) -> list[Allocation]:
        """The bucket of each group that has none yet, and tensors of the gradients that hooks copy."""
        taken: list[Allocation] = []
        for name in weights:
            group, elements = unit.trained[name]
            key = _bucket(group)
            if elements and not (self._emitter.holds(key) or any(item.key == key for item in taken)):
                padded = next(one.trained_shard * one.ranks for one in unit.groups if one.name == group)
                taken.append(allocation(key, "gradients", float(padded * self._reduce_bytes)))
            if elements and name in self._made_first:
                taken.append(self._made_gradient(f"gradient.{unit.name}.{name}", group, elements))
        return taken

    def _made_gradient(self, key: str, group: str, elements: int) -> Allocation:
        """A tensor that is there until its layer's hook has copied it; what adds to one, for a moment."""
        size = float(elements * COMPUTE_BYTES)
        if self._emitter.holds(key):
            return allocation(f"{key} again", "workspace", size)
        self._made.setdefault(group, []).append(key)
        return allocation(key, "gradients", size)

    def _reduce_group(self, group: ShardGroup) -> None:
        padded = group.trained_shard * group.ranks
        self._emitter.release(*self._made.pop(group.name, []))
        while self._pending and sum(each for *_, each in self._pending) + padded > self._most_pending:
            self._settle()
        if self._reduce_bytes != FP32_BYTES:
            scaled = Kernel("elementwise", 0.0, float(2 * padded * self._reduce_bytes))
            self._emitter.compute(f"scale {group.name}", "elementwise", self._costs.price(scaled))
        ready, position = self._emitter.computed, self._emitter.last
        share = float(group.trained_shard * self._reduce_bytes)
        steps: tuple[tuple[Operation, str, float], ...] = (
            ("reduce_scatter", group.axis, float(padded * self._reduce_bytes)),
            ("all_reduce", "dp_replicate", share),
        )
        reduced = [allocation(f"reduced.{group.name}", "reduce buffers", share, pool=REDUCE)]
        for operation, axis, moved in steps:
            transfer = self._ring(operation, axis, moved)
            if transfer is not None:
                name = f"{operation.replace('_', '-')} {group.name}"
                position = self._emitter.transfer(name, REDUCE, operation, transfer, deps=ready, allocates=reduced)
                ready = (position,)
                self._emitter.release(*(item.key for item in reduced))
                reduced = []
        self._pending.append((position, _bucket(group.name), padded))

    def _reduce_in_place(self, group: ShardGroup) -> None:
        """As any other group: of one rank, between replicas alone."""
        self._reduce_group(group)

    def _settle(self) -> None:
        position, key, _ = self._pending.pop(0)
        self._emitter.await_(position)
        self._emitter.release(key)

    def finish_backward(self) -> None:
        """Wait for the reductions that are under way."""
        while self._pending:
            self._settle()

    def before_update(self) -> None:
        """Bound the norm of the shards' gradients, in the format of the weights that are updated."""
        bound_norm(
            self._emitter,
            self._costs,
            self._owned,
            self._layout.trained_tensors,
            summed_bytes=self._reduce_bytes,
            bounded_bytes=self._stored_bytes,
        )

    def after_update(self) -> None:
        """Narrow the master weights into the shards that are gathered, and empty those of the gradients."""
        self._find_scales()
        recast = [share for group in self._layout.groups for share in group.recast(self._stored_bytes)]
        if recast:
            traffic = sum(share.shard * (self._stored_bytes + share.width) for share in recast)
            self._pass("copy parameters", "cast_down", traffic, self._stored_bytes)
        self._pass("zero gradients", "fill", self._owned * self._reduce_bytes, self._reduce_bytes)

    @property
    def _owned(self) -> int:
        """Trained elements of the shards."""
        return sum(group.trained_shard for group in self._layout.groups)

    def _pass(self, name: str, kind: str, traffic: float, element_bytes: int) -> None:
        """One of *traffic* bytes over elements of *element_bytes*."""
        kernel = Kernel(kind, 0.0, float(traffic), dtype=format_of(element_bytes))
        self._emitter.compute(name, kind, self._costs.price(kernel))

    def _is_copied(self, group: ShardGroup) -> bool:
        return group.ranks > 1


def _whole(group: ShardGroup) -> str:
    return f"unsharded.{group.name}"


def _bucket(group: str) -> str:
    return f"reduce.{group}"
