"""FSDP2 around a model's layers, whole or made as shards, with experts that lie on several ranks or not."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from expert_parallel import spread_experts
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(model: torch.nn.Module, settings: dict[str, Any], *, replicas: int, ep: int) -> None:
    """FSDP2 with *settings* on each layer and the root: parameters in bf16, gradients reduced in fp32.

    All ranks shard, or those of each of *replicas*, or those of the mesh in *settings*. Experts that lie on *ep* ranks
    are units of their own over the ranks that hold the same ones, and their gradients are sums over all tokens, as
    torchtitan has it.
    """
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    world = dist.get_world_size()
    settings = {"mp_policy": policy, **settings}
    if replicas > 1:
        names = ("dp_replicate", "dp_shard")
        settings["mesh"] = init_device_mesh("cuda", (replicas, world // replicas), mesh_dim_names=names)
    if ep > 1:
        of_experts = init_device_mesh("cuda", (world // ep, ep), mesh_dim_names=("dp_shard", "ep"))
    for layer in layers(model):
        if ep > 1 and hasattr(layer.mlp, "experts"):
            spread_experts(layer, of_experts["ep"].get_group())
            fully_shard(layer.mlp.experts, **settings | {"mesh": of_experts["dp_shard"]})
            layer.mlp.experts.set_gradient_divide_factor(world)
        fully_shard(layer, **settings)
    fully_shard(model, **settings)


@torch.no_grad()
def fill(model: torch.nn.Module) -> None:
    """Room and random numbers, others on each rank, for a model that was sharded on the meta device."""
    model.to_empty(device="cuda")
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    base.model.rotary_emb = type(base.model.rotary_emb)(base.config).cuda()
    generator = torch.Generator("cuda").manual_seed(dist.get_rank())
    for name, parameter in model.named_parameters():
        shard = parameter.to_local() if hasattr(parameter, "to_local") else parameter.data
        shard.fill_(1.0) if "norm" in name else shard.normal_(0.0, 0.02, generator=generator)


def layers(model: torch.nn.Module) -> Any:
    """The decoder layers."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return base.model.layers
