"""What a scenario says of its way of data parallelism: a section for each system."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from simulator.forecast.section import Section
from simulator.units import Bytes

Degree = Annotated[int, Field(ge=1, le=10_000_000)]


class Fsdp(Section):
    """FSDP2 (fully_shard) settings; its own defaults. Or those of Megatron-FSDP."""

    implementation: Literal["fsdp2", "megatron"] = Field(
        "fsdp2",
        description=(
            "fsdp2: PyTorch's; megatron: Megatron-FSDP (optim_grads_params) with Transformer Engine's layers, whose "
            "parameters are views of what is gathered and whose gradients are made where they are reduced from."
        ),
    )

    reshard_after_forward: StrictBool | Annotated[int, Field(ge=2, le=10_000_000)] = Field(
        True,
        description=(
            "Free gathered parameters after forward and gather again; a number: keep shards over so many consecutive "
            "ranks, a node's say, and gather from them."
        ),
    )
    made: Literal["sharded", "whole"] = Field(
        "sharded",
        description=(
            "How a rank comes to its shards. sharded: made or loaded as such (meta device); whole: the whole model is "
            "put on every accelerator and sharded there, which it needs the room for and whose segments stay."
        ),
    )
    prefetch: Annotated[int, Field(ge=0, le=8)] = Field(1, description="Layers gathered ahead in forward and backward.")
    micro_batches_per_gather: Degree = Field(
        1,
        description=(
            "Micro-batches that go through a layer one after the other between its gather and its release: chunks of "
            "one that is as large, which is gathered for once (chunked micro-batch)."
        ),
    )
    reduce_dtype: Literal["fp32", "bf16"] = Field("fp32", description="Format in which gradients are summed.")

    def is_megatron(self, zero: int) -> bool:
        """Whether *zero* is Megatron-LM's: its distributed optimizer, or Megatron-FSDP."""
        return zero == 1 or (zero == 3 and self.implementation == "megatron")


class Ddp(Section):
    """DistributedDataParallel (zero: 0); PyTorch's own defaults."""

    bucket_bytes: Bytes = Field(25 * 2**20, description="Gradients that are all-reduced together.", gt=0)
    gradient_as_bucket_view: bool = Field(False, description="Gradients are views of the buckets, not copies.")


class DeepSpeed(Section):
    """DeepSpeed's ZeRO-2 (zero: 2); its own defaults."""

    reduce_bucket_elements: Annotated[int, Field(ge=1, le=10**12)] = Field(
        500_000_000, description="Elements of the bucket that gradients are copied into (reduce_bucket_size)."
    )
    overlap_comm: bool = Field(False, description="Two buckets, and reductions beside the backward pass.")


class Megatron(Section):
    """Megatron-LM's distributed optimizer (zero: 1), and what of it Megatron-FSDP has too; its own defaults."""

    overlap_grad_reduce: bool = Field(
        False, description="Gradients are reduced in buckets beside the backward pass of the last micro-batch."
    )
    overlap_param_gather: bool = Field(
        False, description="With that: parameters are gathered in buckets beside the first forward pass."
    )
    gradient_accumulation_fusion: bool = Field(
        True, description="Matmuls of gradients add into the buffer. False: each makes a tensor, which a kernel adds."
    )
    broadcast_batch: bool = Field(
        True, description="One rank of each tensor-parallel group reads a micro-batch and broadcasts it to the others."
    )
    attention_mask: bool = Field(
        False,
        description="Micro-batches come with a mask, a byte for each pair of tokens "
        "(create_attention_mask_in_dataloader, which Megatron-LM has on).",
    )
