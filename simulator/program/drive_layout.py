"""What a rank's process has in host memory and on drives for good, where drives hold the optimizer.

On drives: master weights, moments and fp32 gradients of the sub-groups that are there, and bf16 shards where they are
sent. In host memory: buffers of sub-groups on their way, the share of the gradients in bf16, where micro-batches add
up, the states of sub-groups that stay, and shards or their buffers. All of it is pinned but states, which are in
ordinary memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.engine.task import Allocation
from simulator.program.drive_update import BUFFERS, on_drives, sub_groups
from simulator.program.drives import DRIVE_TIER
from simulator.program.host_memory import host_memory, pinned
from simulator.program.host_shards import READ_BUFFERS
from simulator.program.host_update import FP32_BYTES
from simulator.program.job import Job
from simulator.program.offload import OnDrives
from simulator.program.unit import Unit
from simulator.program.update import Ownership

_SHARD_BYTES = 2


def drive_resident(job: Job, way: OnDrives, units: Sequence[Unit], on_host: Ownership) -> Iterator[Allocation]:
    """What is held from the start."""
    far, near = _elements(way, on_host)
    buffer = max(far, default=0.0) * FP32_BYTES
    yield pinned("resident.buffers of sub-groups", "staging buffers", [buffer] * BUFFERS * way.buffered)
    yield pinned("resident.gradients on host", "gradients", [on_host.elements * _SHARD_BYTES, sum(near) * FP32_BYTES])
    yield host_memory("resident.master weights on host", "optimizer", [sum(near) * FP32_BYTES])
    yield host_memory("resident.master weights on drives", "optimizer", [sum(far) * FP32_BYTES], tier=DRIVE_TIER)
    yield host_memory("resident.gradients on drives", "gradients", [sum(far) * FP32_BYTES], tier=DRIVE_TIER)
    shards = [_shard_bytes(unit) for unit in units]
    if job.offload.shards == "ddr":
        yield pinned("resident.parameters on host", "parameters", [sum(shards)])
    elif job.offload.shards == "nvme":
        yield host_memory("resident.parameters on drives", "parameters", [sum(shards)], tier=DRIVE_TIER)
        buffers = 0 if way.direct else READ_BUFFERS
        yield pinned("resident.buffers of shards", "staging buffers", [max(shards, default=0.0)] * buffers)


def drive_born(job: Job, way: OnDrives, on_host: Ownership) -> Iterator[Allocation]:
    """What the first update adds: both moments."""
    far, near = _elements(way, on_host)
    moments = 2 * job.optimizer.moment_bytes
    yield host_memory("resident.moments on host", "optimizer", [sum(near) * moments])
    yield host_memory("resident.moments on drives", "optimizer", [sum(far) * moments], tier=DRIVE_TIER)


def _elements(way: OnDrives, on_host: Ownership) -> tuple[list[float], list[float]]:
    """Elements of the sub-groups on the drives, and of the others."""
    groups = sub_groups(on_host.tensors, way.sub_group_elements)
    away = on_drives(groups, way)
    return (
        [size for size, far in zip(groups, away, strict=True) if far],
        [size for size, far in zip(groups, away, strict=True) if not far],
    )


def _shard_bytes(unit: Unit) -> float:
    return float(sum(share.shard for group in unit.groups for share in (*group.frozen, *group.trained)) * _SHARD_BYTES)
