"""The part of the scenario that says what is kept below device memory, and which results are not computed again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simulator.forecast.section import Section
from simulator.units import Bytes


class Drives(Section):
    """How drives hold the optimizer (DeepSpeed's ZeRO-Infinity); its own defaults."""

    share: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Share of the sub-groups whose states are on the drives; the others' are in host memory."
    )
    sub_group_elements: Annotated[int, Field(ge=1, le=10**12)] = Field(
        1_000_000_000, description="Elements that are read, updated and written at once (sub_group_size)."
    )
    pipeline_read: bool = Field(False, description="The next sub-group is read while one is updated.")
    pipeline_write: bool = Field(False, description="A sub-group is written while the next one is updated.")
    direct: bool = Field(
        False, description="With parameters nvme: cards read without their host's memory (GPUDirect Storage)."
    )
    block: Bytes = Field(2**20, description="A request to the drives (aio block_size).", gt=0)
    queue_depth: Annotated[int, Field(ge=1, le=65_536)] = Field(
        8, description="Requests that each process has under way (aio queue_depth)."
    )


class ZenFlow(Section):
    """A part of each gradient updated on the card at once, the rest by the host's cores (DeepSpeed's ZenFlow).

    A step is its update_interval: as many micro-batches as lie between two updates of the host.
    """

    topk_ratio: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="Share of the columns of each matrix, those with the largest gradients, that the card updates."
    )
    overlap_step: bool = Field(
        True,
        description="The cores update while the next micro-batches run, whose weights lag; else the card waits.",
    )


class Offload(Section):
    """What is kept in host memory or on drives. Copies share the links and the memory of the node."""

    optimizer: Annotated[float, Field(ge=0, le=1)] | Literal["nvme"] = Field(
        0.0,
        description=(
            "Share of the optimizer's states that is in host memory, updated by the host's cores. zero 1: any "
            "(Megatron-LM's optimizer_offload_fraction); zero 2 or 3: 1, with the master weights (DeepSpeed's "
            "offload_optimizer). nvme, zero 3: on drives, from where the cores get it to update it (ZeRO-Infinity)."
        ),
    )
    parameters: bool | Literal["nvme"] = Field(
        False,
        description=(
            "zero 3: shards of parameters, gradients and optimizer are in host memory (CPUOffloadPolicy); beside "
            "optimizer nvme the bf16 shards alone, there or on drives as well (DeepSpeed's offload_param)."
        ),
    )
    nvme: Drives = Drives()
    zenflow: ZenFlow | None = Field(
        None, description="zero 2, optimizer 1: what the card updates at once of each gradient; absent: nothing."
    )
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="Cores that each rank's process updates with (OMP_NUM_THREADS); torchrun's own default is 1."
    )
    activations: Literal["save_on_cpu", "streamed"] | None = Field(
        None,
        description=(
            "What autograd keeps goes there; of a layer that is recomputed whole, its input. save_on_cpu: in the way "
            "of compute, weights too (PyTorch); streamed: beside compute (torchtune)."
        ),
    )


Share = Annotated[float, Field(gt=0, le=1)]


class Swap(Section):
    """Results of chosen operators kept, in host memory or on the card, where layers else compute them again."""

    operators: dict[str, Share] = Field(
        {},
        description=(
            "By operator, the share of the layers that have it whose results go to host memory beside compute; of "
            "layers that keep all, what it saves. layer_input: what comes into a layer recomputed whole."
        ),
        examples=[{"experts_fc1": 0.5, "layer_input": 1.0}],
    )
    on_card: dict[str, Share] = Field(
        {}, description="The same for results that stay on the card, among layers recomputed whole."
    )
    prefetch: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="Layers whose tensors come back ahead of the layer whose backward pass is under way."
    )
    in_flight: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="Layers whose tensors may still be on their way out while the next one works; then it waits."
    )
