"""ZeRO-2 as DeepSpeed runs it: bf16 parameters whole, gradients and optimizer in shares (Rajbhandari et al., 2020).

Mechanism as in DeepSpeed 0.19 `stage_1_and_2.py` with contiguous gradients: a gradient is copied into a bucket, which
is summed when the next one does not fit: divided, flattened into a copy, *all-reduced* in bf16 (not reduce-scattered),
and what the rank owns copied out twice, into the bucket and into its partition. A gradient larger than a bucket is
summed where it is. Without overlap all of that is in the way of the backward pass; with it there are two buckets, and a
reduction waits for the one before. Every micro-batch reduces; later ones make a partition of their own and add it.

With the optimizer on the host (ZeRO-Offload; Ren et al., 2021) there is no partition on the card: of every bucket what
the rank owns is normed in double precision, widened to fp32 and copied to pinned memory, all of it on the stream of
compute, and the host looks for infinities in each tensor, which it waits for. Of several micro-batches each one's
gradients go out in bf16, with what came back of those before added to them, to pinned buffers of whole tensors; the
last sum goes out once more, in fp32. So it is since deepspeedai/DeepSpeed#7967 (2026-04); since #6550 (2024-10) the
first micro-batch's alone went out, and those of others but the last were lost. Where the cores update beside the next
step (`zenflow`), other processes share the fp32 memory, and it is not pinned.

The update takes the norm of each tensor in double precision, flattens the partition, widens it to fp32, scales it, runs
the optimizer on one flat master tensor, narrows that into the parameters and gathers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from simulator.engine.task import Allocation
from simulator.program.buckets import Bucketed, Buckets, Gradient, move
from simulator.program.costs import Costs
from simulator.program.emitter import COMPUTE, Emitter, allocation
from simulator.program.fsdp import COMPUTE_BYTES, GATHER, REDUCE
from simulator.program.host_memory import COPY_IN, COPY_OUT, HostMemory, host_memory, pinned
from simulator.program.network import Network, Transfer
from simulator.program.offload import Offload
from simulator.program.zenflow import ChosenColumns

FP32_BYTES = 4
FP64_BYTES = 8
WIDE_PARAMETERS = "zero2.wide parameters"
"""Key of the fp32 weights that have come from the host, on the card."""
_BUCKET = "zero2.bucket"
_PARTITION = "zero2.partition"
_SUMS = "zero2.sums on host"


class Zero2(Bucketed):
    """Writes what ZeRO-2 adds to a program of *micro_batches*. *trained* elements are shared by *ranks*; the *largest*
    tensor counts. The optimizer is in the memory of a *host*, if *offload* says so.
    """

    def __init__(
        self,
        emitter: Emitter,
        costs: Costs,
        network: Network,
        buckets: Buckets,
        *,
        late: Set[str],
        trained: int,
        largest: int,
        ranks: int,
        host: HostMemory,
        offload: Offload,
        micro_batches: int,
    ) -> None:
        self._emitter = emitter
        self._costs = costs
        self._network = network
        self._buckets = buckets
        super().__init__(emitter, late)
        self._trained = trained
        self._owned = trained / ranks
        self._largest = min(largest, self._owned)
        self._ranks = ranks
        self._host = host if offload.updated_on_host else None
        self._pinned = not offload.lags
        zenflow = offload.zenflow
        self._columns = None if zenflow is None else ChosenColumns(emitter, costs, network, zenflow.chosen, ranks)
        self._micro_batches = micro_batches
        self._filled: list[float] = []
        """Bytes of each tensor in the bucket."""
        self._large: list[str] = []
        self._under_way: tuple[int, list[float]] | None = None
        """Position of the reduction of a bucket, and the bytes of its tensors."""
        self._sums: list[str] = []

    def finish_backward(self) -> None:
        """Sum what is left in the bucket, add the partition to that of earlier micro-batches, free the buckets."""
        self._hand_on(self._arrivals.take(last=True))
        if self._filled:
            self._sum()
        self._settle()
        again = f"{_PARTITION} again"
        if self._emitter.holds(again):
            move(self._emitter, self._costs, "add partitions", "elementwise", 3 * COMPUTE_BYTES * self._owned)
            self._emitter.release(again)
        if self._emitter.holds(_BUCKET):
            self._emitter.release(_BUCKET)

    def before_update(self) -> None:
        """The norm of what the rank owns, and its gradient as one fp32 tensor, scaled; a host has that already."""
        if self._host is not None:
            return
        emitter, owned = self._emitter, self._owned
        double = allocation("zero2.double", "workspace", self._largest * FP64_BYTES)
        move(emitter, self._costs, "gradient norm", "reduction", owned * (COMPUTE_BYTES + 2 * FP64_BYTES))
        emitter.take(double)
        emitter.release(double.key)
        flat = allocation("zero2.flat partition", "gradients", owned * COMPUTE_BYTES)
        move(emitter, self._costs, "flatten partition", "cat", 2 * COMPUTE_BYTES * owned)
        emitter.take(flat)
        wide = allocation("zero2.wide partition", "gradients", owned * FP32_BYTES)
        move(emitter, self._costs, "widen gradients", "cast_up", owned * (COMPUTE_BYTES + FP32_BYTES))
        emitter.take(wide)
        emitter.release(flat.key, _PARTITION)
        move(emitter, self._costs, "clip gradients", "elementwise", 2 * FP32_BYTES * owned)

    def after_update(self) -> None:
        """Narrow the master weights into the parameters and gather those of the other ranks."""
        if self._host is None:
            self._emitter.release("zero2.wide partition")
        move(self._emitter, self._costs, "copy parameters", "cast_down", self._owned * (FP32_BYTES + COMPUTE_BYTES))
        if self._host is not None:
            self._emitter.release(WIDE_PARAMETERS)
        transfer = self._network.ring("all_gather", "dp_shard", float(self._trained * COMPUTE_BYTES))
        if transfer is not None:
            deps = (self._emitter.last,)
            position = self._emitter.transfer("gather parameters", GATHER, "all_gather", transfer, deps=deps)
            self._emitter.await_(position)
        if self._columns is not None:
            self._columns.settle()
        self._emitter.release(*self._sums)
        self._sums = []

    def _hand_on(self, gradients: Iterable[Gradient]) -> None:
        """Copy gradients into the bucket, after summing it where one does not fit."""
        for gradient in gradients:
            if self._columns is not None:
                self._columns.transpose(gradient.bytes)
            if self._filled and sum(self._filled) + gradient.bytes > self._buckets.bytes:
                self._sum()
            if not self._emitter.holds(_BUCKET):
                count = 2 if self._buckets.overlap else 1
                pieces = (self._buckets.bytes,) * count if count > 1 else ()
                self._emitter.take(Allocation(_BUCKET, "reduce buffers", count * self._buckets.bytes, pieces=pieces))
            if gradient.bytes > self._buckets.bytes:
                self._large.append(gradient.key)
            else:
                move(self._emitter, self._costs, "gradient to bucket", "copy", 2 * gradient.bytes)
                self._emitter.release(gradient.key)
            self._filled.append(gradient.bytes)

    def _sum(self) -> None:
        """Divide, flatten and all-reduce the bucket; the backward pass waits for it unless they overlap."""
        self._settle()
        size, pool = sum(self._filled), REDUCE if self._buckets.overlap else COMPUTE
        move(self._emitter, self._costs, "divide bucket", "elementwise", 2 * size)
        flat = allocation("zero2.flat bucket", "reduce buffers", size, pool=pool)
        move(self._emitter, self._costs, "flatten bucket", "cat", 2 * size)
        self._emitter.take(flat)
        position = self._emitter.last
        transfer = self._network.ring("all_reduce", "dp_shard", size)
        if transfer is not None:
            position = self._emitter.transfer("all-reduce bucket", REDUCE, "all_reduce", transfer, deps=(position,))
        self._under_way, self._filled = (position, self._filled), []
        if not self._buckets.overlap:
            self._settle()

    def _settle(self) -> None:
        """Wait for the reduction under way, and copy what the rank owns of it to where it stays."""
        if self._under_way is None:
            return
        position, tensors = self._under_way
        size = sum(tensors)
        self._emitter.await_(position)
        if self._host is not None:
            last = self._emitter.micro_batch == self._micro_batches - 1
            if self._columns is not None:
                self._columns.take(size / COMPUTE_BYTES, len(tensors), last=last)
            self._send(self._host, tensors, last=last)
            self._emitter.release("zero2.flat bucket", *self._large)
            self._under_way, self._large = None, []
            return
        move(self._emitter, self._costs, "keep partition", "copy", 2 * 2 * size / self._ranks)
        first = not self._emitter.holds(_PARTITION)
        if first or (self._emitter.micro_batch > 0 and not self._emitter.holds(f"{_PARTITION} again")):
            key, kind = (_PARTITION, "gradients") if first else (f"{_PARTITION} again", "reduce buffers")
            self._emitter.take(allocation(key, kind, self._owned * COMPUTE_BYTES))
        self._emitter.release("zero2.flat bucket", *self._large)
        self._under_way, self._large = None, []

    def _send(self, host: HostMemory, tensors: list[float], *, last: bool) -> None:
        """Take the rank's share of gradients of *tensors* bytes each out, one by one: the sum so far in bf16, where
        there are several micro-batches, and the *last* one in fp32.
        """
        elements = sum(tensors) / self._ranks / COMPUTE_BYTES
        copies = max(1, round(len(tensors) / self._ranks))
        if self._emitter.micro_batch > 0:
            self._add(host, elements, copies)
        if self._micro_batches > 1:
            self._out(host.out(elements * COMPUTE_BYTES, copies=copies), "gradients so far out", copies)
        if self._emitter.micro_batch == 0 and not last:
            whole = pinned(f"{_SUMS} {len(self._sums)}", "gradients", tensors)
            self._emitter.take(host_memory(whole.key, whole.kind, [whole.bytes / self._ranks]))
            self._sums.append(whole.key)
        if last:
            self._last(host, elements, copies)

    def _add(self, host: HostMemory, elements: float, copies: int) -> None:
        """Bring the sum so far in and add it."""
        transfer, deps = host.into(elements * COMPUTE_BYTES, copies=copies), (self._emitter.last,)
        position = self._emitter.transfer("gradients so far in", COPY_IN, COPY_IN, transfer, deps=deps, launches=copies)
        self._emitter.await_(position)
        move(self._emitter, self._costs, "add gradients", "elementwise", 3 * COMPUTE_BYTES * elements)

    def _last(self, host: HostMemory, elements: float, copies: int) -> None:
        """Norm, widen and copy out the sum; the host waits for it."""
        emitter = self._emitter
        double = allocation("zero2.double", "workspace", min(self._largest, elements) * FP64_BYTES)
        move(emitter, self._costs, "gradient norm", "reduction", elements * (COMPUTE_BYTES + 2 * FP64_BYTES))
        emitter.take(double)
        emitter.release(double.key)
        wide = allocation("zero2.wide gradients", "workspace", min(self._largest, elements) * FP32_BYTES)
        move(emitter, self._costs, "widen gradients", "cast_up", elements * (COMPUTE_BYTES + FP32_BYTES))
        emitter.take(wide)
        self._out(host.out(elements * FP32_BYTES, copies=copies, pinned=self._pinned), "gradients out", copies)
        emitter.block_host()
        emitter.release(wide.key)

    def _out(self, transfer: Transfer, name: str, copies: int) -> None:
        deps = (self._emitter.last,)
        position = self._emitter.transfer(name, COPY_OUT, COPY_OUT, transfer, deps=deps, launches=copies)
        self._emitter.await_(position)
