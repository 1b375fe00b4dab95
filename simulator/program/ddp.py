"""DistributedDataParallel of PyTorch: everything whole on every rank, gradients averaged in buckets beside backward.

Mechanism as in `torch/csrc/distributed/c10d/reducer.cpp`: a gradient is scaled into its bucket by one kernel; a bucket
is closed by the gradient that fills it, the first one at 1 MiB so that communication starts early, and all-reduced on a
stream of its own; the update waits for all. From the second step to the end of the job there are buckets in the order
in which gradients came in the first step, which has one for all of them. Gradients are tensors beside the buckets, or
become views of them. Only the last micro-batch of a step is reduced (`no_sync` for those before): until then gradients
add up outside the buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from simulator.engine.task import Allocation, Task
from simulator.program.buckets import Bucketed, Buckets, Gradient, move
from simulator.program.costs import Costs
from simulator.program.emitter import Emitter, allocation
from simulator.program.fsdp import REDUCE
from simulator.program.network import Network
from simulator.program.rebuilt import Rebuilt

BUCKETS = "buckets"
"""Name of theirs among what is resident."""
FIRST_BUCKET_BYTES = float(1 << 20)


class Ddp(Bucketed):
    """Writes what DDP adds to a program of *micro_batches*; *late* weights are used more than once."""

    def __init__(
        self, emitter: Emitter, costs: Costs, network: Network, buckets: Buckets, *, late: Set[str], micro_batches: int
    ) -> None:
        self._emitter = emitter
        self._costs = costs
        self._network = network
        self._buckets = buckets
        self._last = micro_batches - 1
        super().__init__(emitter, late)
        self._several = network.ring("all_reduce", "dp_replicate", 1.0) is not None
        self._kept: dict[str, None] = {}
        self._filled = 0.0
        self._limit = FIRST_BUCKET_BYTES
        self._reductions: list[int] = []
        self._reduced = 0.0
        self._first: Task | None = None

    def finish_backward(self) -> None:
        """Reduce the last bucket, wait for all of them and, where gradients are no views, copy the averages back."""
        self._hand_on(self._arrivals.take(last=True))
        if self._filled:
            self._close()
        for position in self._reductions:
            self._emitter.await_(position)
        if self._reduced and not self._buckets.views:
            move(self._emitter, self._costs, "averages to gradients", "copy", 2 * self._reduced)
        self._reductions, self._reduced, self._limit = [], 0.0, FIRST_BUCKET_BYTES

    def before_update(self) -> None:
        """Nothing: the backward pass waited for the averages."""

    def after_update(self) -> None:
        """Free the gradients (zero_grad)."""
        self._emitter.release(*self._kept)
        self._kept = {}

    def rebuilt(self, resident: Iterable[Allocation]) -> Rebuilt | None:
        """The buckets."""
        for buckets in resident:
            if buckets.key == f"resident.{BUCKETS}":
                old = allocation("first bucket", buckets.kind, sum(buckets.pieces or (buckets.bytes,)))
                return Rebuilt(old, buckets, until=self._first if self._buckets.views else None)
        return None

    def _hand_on(self, gradients: Iterable[Gradient]) -> None:
        """Keep gradients, and scale those of the last micro-batch into their bucket, which full ones close."""
        for gradient in gradients:
            if gradient.key in self._kept:
                move(self._emitter, self._costs, "add gradients", "elementwise", 3 * gradient.bytes)
            in_bucket = self._several and self._emitter.micro_batch == self._last
            if in_bucket:
                position = move(self._emitter, self._costs, "gradient to bucket", "elementwise", 2 * gradient.bytes)
                self._first = self._first or self._emitter.tasks[position]
            if in_bucket and self._buckets.views:
                self._emitter.release(gradient.key)
                self._kept.pop(gradient.key, None)
            else:
                self._kept[gradient.key] = None
            if in_bucket:
                self._filled += gradient.bytes
                if self._filled >= self._limit:
                    self._close()

    def _close(self) -> None:
        """All-reduce the bucket that has been filled."""
        transfer = self._network.ring("all_reduce", "dp_replicate", self._filled)
        if transfer is not None:
            deps = (self._emitter.last,)
            self._reductions.append(
                self._emitter.transfer("all-reduce bucket", REDUCE, "all_reduce", transfer, deps=deps)
            )
        self._reduced += self._filled
        self._filled, self._limit = 0.0, self._buckets.bytes


def bucket_sizes(gradient_bytes: Iterable[float], limit_bytes: float) -> list[float]:
    """Bytes of the buckets of gradients in the order given: each is closed by the one that fills it."""
    sizes, filled, limit = [], 0.0, FIRST_BUCKET_BYTES
    for size in gradient_bytes:
        filled += size
        if filled >= limit:
            sizes.append(filled)
            filled, limit = 0.0, limit_bytes
    return [*sizes, filled] if filled else sizes
