"""Shards in host memory under FSDP: parameters on their way in before a gather, gradients on their way out.

FSDP2's `CPUOffloadPolicy` (PyTorch 2.14 `_fsdp_param.py`, `_fsdp_collectives.py`) has all shards pinned on the host.
One is copied in, in its own format, before it is cast for the gather, and a reduced gradient is copied out behind its
reduction, for which the host waits at the end of the backward pass. A later micro-batch's is added by the host's cores,
once it is there (12 bytes an element in fp32: two read, one written; both are pinned).

DeepSpeed's ZeRO-3 with `offload_optimizer` (0.19 `stage3.py`, `partition_grads`) keeps bf16 shards of parameters on the
card, or in host memory or on drives (`offload_param`). A reduced gradient goes out in bf16 to where micro-batches add
up and comes back; that of the last micro-batch is widened and goes out in fp32, and on to drives where those have the
optimizer. All of it is on the reduction's stream, and the host waits for the last of it; writes go on beside it.

Shards on drives are read into pinned buffers of two units, so that one is read while another is copied, or straight to
the card. Left out: small gradients that stay in host memory, and waiting for buffers of gradients that are not written
yet, which takes what the update would wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.engine.task import Allocation
from simulator.parallel.sharding import ShardGroup
from simulator.program.costs import Priced
from simulator.program.drives import DRIVE_READ, DRIVE_WRITE, Drives
from simulator.program.emitter import Emitter, allocation
from simulator.program.host_memory import COPY_IN, COPY_OUT, CORES, HostMemory, pinned
from simulator.program.offload import Offload

_WIDE_BYTES, _NARROW_BYTES = 4, 2
READ_BUFFERS = 2
"""Units whose shards have buffers in host memory on their way from drives."""


class HostShards:
    """Writes the copies of shards of one stage, whose elements have so many bytes while they are frozen or trained, in
    a program of *micro_batches*.
    """

    def __init__(
        self,
        emitter: Emitter,
        host: HostMemory,
        drives: Drives | None,
        offload: Offload,
        *,
        frozen_bytes: int,
        stored_bytes: int,
        micro_batches: int,
    ) -> None:
        self._emitter = emitter
        self._host = host
        self._drives = drives
        self._offload = offload
        self._frozen_bytes = frozen_bytes
        self._stored_bytes = stored_bytes
        self._micro_batches = micro_batches
        self._leaving: int | None = None
        self._came: list[int] = []
        """Positions of copies of shards that drives have read."""

    def fetch(self, groups: Sequence[ShardGroup], name: str) -> tuple[int, Allocation] | None:
        """Copy the shards of *groups* in; the position of the copy and what it takes on the card, or nothing to do."""
        if not self._offload.fetches or not groups:
            return None
        sizes = [float(share.shard * self._frozen_bytes) for group in groups for share in group.frozen]
        sizes += [float(share.shard * self._stored_bytes) for group in groups for share in group.trained]
        taken = allocation(f"shards {name} {self._emitter.last + 1}", "gathered parameters", sum(sizes), pool=COPY_IN)
        drives = self._drives if self._offload.shards == "nvme" else None
        if drives is not None and self._offload.drives is not None and self._offload.drives.direct:
            straight = drives.read_to_card(sum(sizes))
            return self._emitter.transfer(
                f"shards {name} in", DRIVE_READ, DRIVE_READ, straight, deps=(), allocates=[taken]
            ), taken
        transfer, count = self._host.into(sum(sizes), copies=len(sizes)), len(sizes)
        ready = () if drives is None else (self._read(drives, sum(sizes), name),)
        position = self._emitter.transfer(
            f"shards {name} in", COPY_IN, COPY_IN, transfer, deps=ready, allocates=[taken], launches=count
        )
        self._came.append(position)
        return position, taken

    def _read(self, drives: Drives, size: float, name: str) -> int:
        """Read the shards of a unit to host memory, where a copy has left room for them."""
        deps = tuple(self._came[-READ_BUFFERS:][:1]) if len(self._came) >= READ_BUFFERS else ()
        return self._emitter.transfer(f"shards {name} read", DRIVE_READ, DRIVE_READ, drives.read(size), deps=deps)

    def take_gradient(self, group: ShardGroup, after: int) -> str | None:
        """Copy the reduced gradient of *group* out behind the task at *after*; the key of what it becomes on the host,
        if that is new and stays to the end of the step.
        """
        if not self._offload.parameters:
            self._out(group, after, _NARROW_BYTES)
            back = self._host.into(float(group.trained_shard * _NARROW_BYTES), copies=len(group.trained))
            position = self._emitter.transfer(
                f"gradient {group.name} in", COPY_IN, COPY_IN, back, deps=(self._emitter.last,)
            )
            if self._emitter.micro_batch in range(self._micro_batches - 1):
                self._emitter.block_host()
                return None
            out = self._out(group, position, _WIDE_BYTES)
            self._emitter.block_host()
            if self._drives is not None and self._offload.drives is not None:
                size = float(group.trained_shard * _WIDE_BYTES) * self._offload.drives.share
                written = self._drives.write(size)
                self._emitter.transfer(f"gradient {group.name} write", DRIVE_WRITE, DRIVE_WRITE, written, deps=(out,))
            return None
        key = f"grad.{group.name} on host"
        sizes = [float(share.shard * self._stored_bytes) for share in group.trained]
        fresh = not self._emitter.holds(key)
        self._leaving = self._out(group, after, self._stored_bytes)
        if fresh:
            self._emitter.take(pinned(key, "gradients", sizes))
            return key
        self._emitter.block_host()
        adding = self._host.sweep("cpu_pass", 3 * sum(sizes), self._offload.threads, near=3 * sum(sizes))
        self._emitter.transfer("add gradients on cpu", CORES, "cpu_pass", adding, deps=(), launches=0)
        self._emitter.block_host()
        return None

    def settle(self) -> None:
        """Have the host wait for the gradients that are on their way out."""
        if self._leaving is not None:
            self._emitter.await_(self._leaving)
            self._emitter.compute("synchronize", "synchronize", Priced(0, 0, "measured"))
            self._emitter.block_host()
        self._leaving = None

    def _out(self, group: ShardGroup, after: int, element_bytes: int) -> int:
        copies = len(group.trained)
        transfer = self._host.out(float(group.trained_shard * element_bytes), copies=copies)
        name = f"gradient {group.name} out"
        return self._emitter.transfer(name, COPY_OUT, COPY_OUT, transfer, deps=(after,), launches=copies)
