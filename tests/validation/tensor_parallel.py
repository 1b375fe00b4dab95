"""Tensor parallelism with sequence parallelism of a public Llama, as torchtitan splits it: DTensor, real collectives.

Norms and residuals hold a share of the tokens, projections a share of their columns or rows, the embedding and the
output projection a share of the vocabulary. Inputs of a split part are gathered and its partial sums scattered; the
loss reads logits that stay split (`loss_parallel`, which the caller is inside of in both passes). The plan is that of
torchtitan's Llama 3 (`models/llama3/infra/parallelize.py`), on the modules of transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

TOKENS, WHOLE = Shard(1), Replicate()
"""How activations [batch, tokens, width] lie outside and inside of split parts."""


def split(model: nn.Module, mesh: DeviceMesh) -> None:
    """Share *model*, a `LlamaForCausalLM`, between the ranks of *mesh*; every rank brings all of it.

    Raise :exc:`ValueError` for another kind of model, whose parts the plan does not name.
    """
    kind = model.config.model_type
    if kind != "llama":
        raise ValueError(f"the plan of tensor parallelism names the parts of a llama, not of a {kind}")
    parallelize_module(model, mesh, _ends())
    for layer in model.model.layers:
        parallelize_module(layer, mesh, _layer())
    model.model.embed_tokens.register_forward_hook(lambda part, inputs, rows: Arrived.apply(rows))
    model.model.register_forward_pre_hook(_whole_positions, with_kwargs=True)


def _ends() -> dict[str, ParallelStyle]:
    return {
        "model.embed_tokens": RowwiseParallel(input_layouts=WHOLE, output_layouts=TOKENS),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=TOKENS, output_layouts=Shard(-1), use_local_output=False),
    }


def _layer() -> dict[str, ParallelStyle]:
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    hidden = "hidden_states"
    return {
        "input_layernorm": SequenceParallel(),
        "post_attention_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={hidden: TOKENS}, desired_input_kwarg_layouts={hidden: WHOLE}
        ),
        "mlp": PrepareModuleInput(input_layouts=TOKENS, desired_input_layouts=WHOLE),
        "self_attn.o_proj": RowwiseParallel(output_layouts=TOKENS),
        "mlp.down_proj": RowwiseParallel(output_layouts=TOKENS),
        **{name: ColwiseParallel() for name in columns},
    }


def _whole_positions(
    model: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Attention runs over whole sequences: without being told, the model would count its embeddings, a share."""
    ids = keywords["input_ids"]
    return inputs, keywords | {"position_ids": torch.arange(ids.shape[1], device=ids.device)[None]}


class Arrived(torch.autograd.Function):
    """A tensor that a collective is still writing, waited for: compiled layers lose the gradient of one that is not."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        """Wait."""
        arrived = rows.trigger_wait() if isinstance(rows, AsyncCollectiveTensor) else rows
        return arrived.view_as(arrived)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Hand on."""
        return gradient
