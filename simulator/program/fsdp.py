"""FSDP2 as PyTorch runs it: gather before use, free after, reduce-scatter what was trained.

Mechanism and memory follow PyTorch 2.14 `torch/distributed/fsdp/_fully_shard`: an all-gather into one flat buffer on
its own stream, from shards that are cast to the gather's format where they have another; a copy-out into per-parameter
storage on the compute stream; prefetch of the next unit right after that copy-out. In forward a unit's flat buffer
lives until the next unit's copy-out or the end of the pass, so three unsharded copies exist at the peak; in backward it
is freed right after its own. A reduce-scatter takes its input in the reduce dtype while the unsharded gradients are
still alive, and those of the next unit wait for it. Gather buffers and casts come from the memory of the gather's
stream, and reduced gradients, which live to the end of the step, from the reduction's: caching allocators share none of
it with the compute stream.

Routed experts that are spread over ranks have a mesh of their own in the `fully_shard` of their layer, as torchtitan
shards them since March 2026: two gathers and two reductions, one behind the other. Experts' gradients are the first to
be reduced, and those of the rest of the layer do not wait for that (pytorch/pytorch#177319).

Sums between replicas have a stream of their own, for which nothing waits before the end of a backward pass; what they
read stays until then.

Weights that are gathered in fp8 are cast shard by shard, with scales that one pass over all shards and one all-reduce
find behind the update (torchao, `precompute_float8_dynamic_scale_for_fsdp`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simulator.engine.task import Allocation
from simulator.hardware.collective import Operation
from simulator.model.operator import Kernel
from simulator.parallel.sharding import ShardGroup
from simulator.program import fsdp_hooks
from simulator.program.costs import Costs, Priced
from simulator.program.emitter import Emitter, allocation, tensors
from simulator.program.host_shards import HostShards
from simulator.program.network import Network, Transfer
from simulator.program.post_forward import PostForward
from simulator.program.rebuilt import Rebuilt
from simulator.program.unit import Unit

GATHER = "fsdp_gather"
REDUCE = "fsdp_reduce"
ALL_REDUCE = "fsdp_all_reduce"
COMPUTE_BYTES = 2
"""Bytes of an element that is computed with in bf16, as all gradients are and all parameters outside fp8 matmuls."""
TENSORS_PER_KERNEL = 100
"""Tensors that one multi-tensor kernel takes, about: its argument space holds so many addresses."""
SCALE_BYTES = 4
LAST_REGISTERED = ("lm_head.weight", "mlp.experts.down_proj", "mlp.experts.down_proj_bias")
"""Weights that the root and experts register last, whose gradient is there until the reduction has its result: a loop
of PyTorch's (`foreach_reduce`) keeps a name for it. Layers register a norm last; of experts with biases, the last one
is it."""
REDUCED = {2: "bf16", 4: "fp32"}
"""Name of the format of a reduction by its bytes an element."""


class Fsdp:
    """Writes the FSDP tasks of a program."""

    def __init__(
        self,
        emitter: Emitter,
        costs: Costs,
        network: Network,
        *,
        stored_bytes: int,
        reduce_bytes: int,
        scaled_shards: Sequence[int] = (),
        post_forward_ranks: int = 1,
        host: HostShards | None = None,
    ) -> None:
        self._emitter = emitter
        self._costs = costs
        self._network = network
        self._stored_bytes = stored_bytes
        self._reduce_bytes = reduce_bytes
        self._scaled_shards = scaled_shards
        self._host = host
        self._post_forward = PostForward(emitter, costs, post_forward_ranks)
        self._transfers: dict[tuple[str, str, float], Transfer | None] = {}
        self._gathers: dict[str, dict[int, str]] = {}
        self._spent: list[str] = []
        self._made: dict[str, list[str]] = {}
        self._kept: list[str] = []
        self._reduces: list[tuple[int, str]] = []
        self._sums: list[tuple[int, str]] = []
        self._last_copy_out: tuple[int, ...] = ()

    def gather(self, unit: Unit) -> None:
        """Issue the all-gathers of *unit*, unless they are under way or done."""
        if unit.name in self._gathers:
            return
        self._gather(unit, ahead=True)

    def _gather(self, unit: Unit, *, ahead: bool) -> None:
        self._gathers[unit.name] = {}
        copied = self._copied(unit)
        ready = self._copy_in(unit, ahead=ahead)
        came = self._host.fetch(copied, unit.name) if self._host is not None else None
        ready = (*ready, came[0]) if came is not None else ready
        for group in copied:
            size = float(group.gathered_bytes)
            transfer = self._ring("all_gather", self._post_forward.axis(group), size)
            if transfer is not None:
                name = f"all-gather {group.name}"
                label = f"{name} {self._emitter.last + 1}"
                buffer = allocation(label, "gathered parameters", size, pool=GATHER)
                cast = allocation(f"{label} cast", "workspace", self._cast_bytes(group), pool=GATHER)
                position = self._emitter.transfer(
                    name, GATHER, "all_gather", transfer, deps=ready, allocates=[cast, buffer]
                )
                if self._emitter.holds(cast.key):
                    self._emitter.release(cast.key)
                self._gathers[unit.name][position] = buffer.key
        if came is None:
            return
        position, shards = came
        if self._gathers[unit.name]:
            self._emitter.release(shards.key)
        else:
            self._gathers[unit.name][position] = shards.key

    def unshard(self, unit: Unit, *, keep_buffers: bool) -> None:
        """Wait for the all-gathers of *unit* and copy out. *keep_buffers* until the next unit does so (forward)."""
        groups = self._copied(unit)
        if not groups or self._emitter.holds(f"unsharded.{groups[0].name}"):
            return
        if unit.name not in self._gathers:
            self._gather(unit, ahead=False)
        for position in self._gathers[unit.name]:
            self._emitter.await_(position)
        own = list(self._gathers[unit.name].values())
        done, self._spent = (self._spent, own) if keep_buffers else (own, self._spent)
        traffic = 2.0 * sum(g.gathered_bytes for g in groups)
        copy = self._costs.price(Kernel("split_copy", 0.0, traffic, launches=len(groups)))
        if casts := self._casts(group for group in groups if group.ranks == 1):
            copy += casts
        parameters = [
            tensors(
                f"unsharded.{g.name}",
                "gathered parameters",
                [float(share.elements * share.width) for share in (*g.frozen, *g.trained)],
            )
            for g in groups
        ]
        hooks_ns = self._hooks_ns(fsdp_hooks.gathered(groups, forward=self._emitter.phase == "forward"))
        position = self._emitter.compute(
            f"copy-out {unit.name}", "split_copy", copy, allocates=parameters, host_ns=hooks_ns
        )
        self._emitter.release(*done)
        self._post_forward.drop(groups)
        self._last_copy_out = (position,)

    def reshard(self, unit: Unit) -> None:
        """Free the unsharded parameters of *unit* after the task written last, in forward but for parts of them."""
        if self._emitter.phase == "forward":
            self._post_forward.keep(self._copied(unit))
        keys = (f"unsharded.{group.name}" for group in self._copied(unit))
        self._emitter.release(*(key for key in keys if self._emitter.holds(key)))
        self._gathers.pop(unit.name, None)

    def finish_forward(self) -> None:
        """Free the gather buffers that no later unit has freed, as the root does behind the model's forward pass."""
        self._emitter.release(*self._spent)
        self._spent = []

    def finish_backward(self) -> None:
        """Wait for the last reductions and all sums, and the host for the gradients on their way to it."""
        self._finish_reductions()
        for position, key in self._sums:
            self._emitter.await_(position)
            self._emitter.release_held([key])
        self._sums = []
        if self._host is not None:
            self._host.settle()

    def gradients(self, unit: Unit, weights: tuple[str, ...]) -> list[Allocation]:
        """The unsharded gradients of *weights* of *unit*; what adds to one that exists is workspace for a moment."""
        made = []
        for name in weights:
            group, elements = unit.trained[name]
            key, size = f"gradient.{unit.name}.{name}", float(elements * COMPUTE_BYTES)
            if elements and self._emitter.holds(key):
                made.append(allocation(f"{key} again", "workspace", size))
            elif elements:
                made.append(allocation(key, "gradients", size))
                self._made.setdefault(group, []).append(key)
        return made

    def reduce(self, unit: Unit) -> None:
        """Reduce-scatter the gradients of *unit*, its experts' first, then all-reduce the shard between replicas.

        What is under way of the unit before ends first.
        """
        trained = [group for group in reversed(unit.groups) if group.trained_elements]
        if any(self._is_copied(group) for group in trained):
            self._finish_reductions()
        for group in trained:
            if self._is_copied(group):
                self._reduce_group(group)
            else:
                self._reduce_in_place(group)

    def _finish_reductions(self) -> None:
        """Make the compute stream wait for the reductions under way, and free their inputs.

        The host frees them when it issues the wait: before the next input is taken, and at the end of a backward pass.
        """
        for position, key in self._reduces:
            self._emitter.await_(position)
            self._emitter.release(key)
        self._reduces = []

    def _reduce_group(self, group: ShardGroup) -> None:
        emitter = self._emitter
        padded = group.trained_shard * group.ranks
        size = float(padded * self._reduce_bytes)
        key = f"reduce.{group.name}"
        copy = self._costs.price(Kernel("chunk_cat", 0.0, self._copy_in_bytes(group) + size))
        buffer = allocation(key, "reduce buffers", size)
        hooks_ns = self._hooks_ns(fsdp_hooks.reduced(group))
        emitter.python(emitter.framework.cat_of(size / group.ranks))
        copy_in = emitter.compute(f"copy-in {group.name}", "chunk_cat", copy, allocates=[buffer], host_ns=hooks_ns)
        gradients = self._made.pop(group.name, [])
        held = [name for name in gradients if group.ranks > 1 and name.endswith(LAST_REGISTERED)][-1:]
        emitter.release(*(name for name in gradients if name not in held))
        position = copy_in if group.ranks > 1 else self._pass_on(group, size)
        result, transfer = self._result(group), self._ring("reduce_scatter", group.axis, size)
        if transfer is not None:
            name = f"reduce-scatter {group.name}"
            position = emitter.transfer(name, REDUCE, transfer.kind, transfer, deps=(position,), allocates=result)
        else:
            emitter.take(*result)
        emitter.release(*held)
        self._reduces.append((position, key))
        summed = self._sum_over_replicas(group, group.trained_shard * self._reduce_bytes, position)
        if self._host is not None:
            on_host = self._host.take_gradient(group, position if summed is None else summed)
            self._kept += [on_host] if on_host else []
        if summed is None:
            emitter.release_held([f"reduced.{group.name}"])

    def _sum_over_replicas(self, group: ShardGroup, size: int, after: int) -> int | None:
        """All-reduce *size* bytes of *group*'s gradients behind the task at *after*.

        Returns the position of that; None where there are no replicas.
        """
        transfer = self._ring("all_reduce", "dp_replicate", float(size))
        if transfer is None:
            return None
        name = f"all-reduce {group.name}"
        position = self._emitter.transfer(name, ALL_REDUCE, transfer.kind, transfer, deps=(after,))
        self._sums.append((position, f"reduced.{group.name}"))
        return position

    def _pass_on(self, group: ShardGroup, size: float) -> int:
        """Copy what one rank has to itself from the reduction's input to its result; experts' is divided before.

        Experts on several ranks get gradients of all tokens, which torchtitan divides by the ranks of the mesh: between
        ranks in the reduction, here in a pass of its own. PyTorch does both beside compute, at the same memory's rate.
        """
        divides = group.axis == "efsdp"
        divided = [allocation(f"divided.{group.name}", "workspace", size, pool=REDUCE)] if divides else []
        copy = self._costs.price(Kernel("copy", 0.0, 2 * size, dtype=REDUCED[self._reduce_bytes]))
        if divides:
            copy += self._costs.price(Kernel("elementwise", 0.0, 2 * size, dtype=REDUCED[self._reduce_bytes]))
        position = self._emitter.compute(f"pass on {group.name}", "copy", copy, allocates=divided)
        self._emitter.release(*(one.key for one in divided))
        return position

    def _copy_in_bytes(self, group: ShardGroup) -> float:
        """What the gradients of *group* take when they are copied into a reduction's buffer."""
        return float(group.trained_elements * COMPUTE_BYTES)

    def _reduce_in_place(self, group: ShardGroup) -> None:
        """All-reduce between replicas of gradients that were never sharded."""
        self._kept += self._made.pop(group.name, [])
        self._sum_over_replicas(group, group.trained_elements * COMPUTE_BYTES, self._emitter.last)

    def _result(self, group: ShardGroup) -> list[Allocation]:
        """What a reduction leaves: the gradient that lives to the end of the step, beside a temporary where it adds up.

        The first reduced shard becomes the gradient itself where its format is the parameter's.
        """
        gradient = allocation(
            f"grad.{group.name}", "gradients", float(group.trained_shard * self._stored_bytes), pool=REDUCE
        )
        reduced = allocation(
            f"reduced.{group.name}", "reduce buffers", float(group.trained_shard * self._reduce_bytes), pool=REDUCE
        )
        if self._host is not None or self._emitter.holds(gradient.key):
            return [reduced]
        self._kept.append(gradient.key)
        return [gradient] if self._stored_bytes == self._reduce_bytes else [gradient, reduced]

    def before_update(self) -> None:
        """Nothing: every backward pass has reduced its gradients."""

    def after_update(self) -> None:
        """Free the sharded gradients (zero_grad), and find the scales with which shards are cast to be gathered."""
        self._emitter.release(*self._kept)
        self._kept = []
        self._find_scales()

    def _find_scales(self) -> None:
        """One pass over the shards that are cast to fp8, and one all-reduce of their largest values."""
        if not self._scaled_shards:
            return
        launches = max(1, len(self._scaled_shards) // TENSORS_PER_KERNEL)
        dtype = "fp32" if self._stored_bytes != COMPUTE_BYTES else "bf16"
        traffic = float(self._stored_bytes * sum(self._scaled_shards))
        found = self._costs.price(Kernel("reduction", 0.0, traffic, dtype=dtype, launches=launches))
        self._emitter.compute("scales of weights", "reduction", found)
        transfer = self._ring("all_reduce", "dp_shard", float(SCALE_BYTES * len(self._scaled_shards)))
        if transfer is not None:
            deps = (self._emitter.last,)
            self._emitter.await_(self._emitter.transfer("scales", REDUCE, "all_reduce", transfer, deps=deps))

    def rebuilt(self, _resident: Iterable[Allocation]) -> Rebuilt | None:
        """Nothing."""
        return None

    def _copy_in(self, unit: Unit, *, ahead: bool) -> tuple[int, ...]:
        """Cast the shards of *unit* to the compute format and copy them into the all-gather's buffer.

        PyTorch does so on a stream of its own; since that takes the same memory rate as compute, it is written as
        part of compute. Returns what the all-gather waits for: when it is issued *ahead*, its own copy-in, which is
        next on the compute stream; else the last copy-out, since it runs beside the compute that was issued before.
        """
        groups = [group for group in self._copied(unit) if group.ranks > 1]
        if not groups:
            return self._last_copy_out
        parts = [group for group in groups if self._post_forward.holds(group)]
        shards = [group for group in groups if not self._post_forward.holds(group)]
        owned = sum(group.gathered_bytes / group.ranks for group in shards)
        owned += sum(self._post_forward.part_bytes(group) for group in parts)
        copy = self._costs.price(Kernel("list_copy", 0.0, 2.0 * owned, launches=len(groups)))
        if casts := self._casts(shards):
            copy += casts
        position = self._emitter.compute(f"gather copy-in {unit.name}", "list_copy", copy)
        return (position, *self._last_copy_out) if ahead or not self._last_copy_out else self._last_copy_out

    def _casts(self, groups: Iterable[ShardGroup]) -> Priced | None:
        """Casts of the shards of *groups* to the format that they are gathered in, where it is not their own."""
        recast = [share for group in groups for share in group.recast(self._stored_bytes)]
        traffic = sum((self._stored_bytes + share.width) * share.shard for share in recast)
        return self._costs.price(Kernel("list_copy", 0.0, float(traffic), dtype="fp32")) if recast else None

    def _copied(self, unit: Unit) -> tuple[ShardGroup, ...]:
        """Groups of *unit* that are gathered or cast before use."""
        return tuple(group for group in unit.groups if self._is_copied(group))

    def _cast_bytes(self, group: ShardGroup) -> float:
        """What the shards of trained parameters take in the format of the gather, where that is not their own."""
        recast = () if self._post_forward.holds(group) else group.recast(self._stored_bytes)
        return float(sum(share.shard * share.width for share in recast))

    def _hooks_ns(self, launches: float) -> int:
        """Host time of hooks that take as long as so many *launches*."""
        return round(launches * self._costs.framework_launch_ns)

    def _is_copied(self, group: ShardGroup) -> bool:
        """Whether the parameters are not simply resident as they are computed with."""
        return self._host is not None or group.ranks > 1 or bool(group.recast(self._stored_bytes))

    def _ring(self, operation: Operation, axis: str, size: float) -> Transfer | None:
        key = operation, axis, size
        if key not in self._transfers:
            self._transfers[key] = self._network.ring(operation, axis, size)
        return self._transfers[key]
