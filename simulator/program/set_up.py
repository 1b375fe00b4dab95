"""Setting up: how the model comes to a rank before the first step.

Under FSDP2 a model is made on PyTorch's meta device, so that shards are the first that memory sees of it; or it is made
whole, and `fully_shard` replaces the parameters of one unit after the other by shards (`_init_sharded_param`): a unit's
shards are there before its whole parameters go, whose segments stay. DeepSpeed's ZeRO-2 copies its share before it
widens it, and tries gradients of it out (`initialize_optimizer_states`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simulator.engine.task import Allocation, Task
from simulator.program.emitter import tensors
from simulator.program.fsdp import COMPUTE_BYTES
from simulator.program.job import Job
from simulator.program.layout import Layout, parameters_key, tensor_bytes
from simulator.program.rebuilt import Rebuilt, moment


def set_up(job: Job, layout: Layout, held: Iterable[Allocation], rebuilt: Rebuilt | None) -> list[Task]:
    """What is taken and given back, in order. *held* is resident beside the layout's memory."""
    if job.made_whole:
        return [*_sharded_afterwards(job, layout), moment("libraries", held)]
    resident = [rebuilt.old if rebuilt and item.key == rebuilt.new.key else item for item in layout.resident]
    tried = list(_tried_out(job, layout)) if job.zero == 2 else []
    return [
        moment("resident memory", [*resident, *held]),
        moment("try gradients out", tried, [item.key for item in tried]),
    ]


def _sharded_afterwards(job: Job, layout: Layout) -> Iterator[Task]:
    """The whole model, then shards in its place, unit by unit."""
    groups = [group for group in layout.groups if group.parameters]
    whole = {g.name: tensors(f"whole.{g.name}", "parameters", tensor_bytes(job, g, whole=True)) for g in groups}
    shards = {item.key: item for item in layout.resident}
    yield moment("make the model", whole.values())
    for name, parameters in whole.items():
        yield moment(f"shard {name}", [shards[parameters_key(name)]], [parameters.key])


def _tried_out(job: Job, layout: Layout) -> Iterator[Allocation]:
    """ZeRO-2's copy of its share, and gradients of it."""
    for name, size in (("copy of share", COMPUTE_BYTES), ("gradient of share", job.optimizer.stored_bytes)):
        yield tensors(f"set up.{name}", "workspace", [layout.ownership.elements * size])
