"""Counts the operations of megatron-core's router that launch a kernel, forward and backward, for several scores.

    python count_router_kernels.py

Needs torch and megatron-core 0.16.1, and no GPU: operations are counted as PyTorch dispatches them, views and
allocations left out. A choice of the largest is one operation and two kernels or more on a GPU. Prints one line a
router: its product, casts around that, and the gradient that the backward pass starts from are among them.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import megatron.core.transformer.moe.moe_utils as moe
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

TOKENS, HIDDEN = 32, 64
NO_KERNEL = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "slice", "select", "split"),
        *("unsqueeze", "squeeze", "detach", "alias", "empty", "empty_like", "empty_strided", "new_empty"),
        *("as_strided", "unbind", "is_same_size", "lift_fresh"),
    )
)
SIGMOID = {
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_load_balancing_type": "seq_aux_loss",
    "moe_router_dtype": "fp32",
    "moe_router_topk_scaling_factor": 2.5,
}
ROUTERS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "sigmoid and bias": SIGMOID,
    "sigmoid and bias in groups": SIGMOID | {"moe_router_num_groups": 4, "moe_router_group_topk": 2},
    "softmax, fused": {"moe_router_fusion": True},
    "sigmoid and bias, fused": SIGMOID | {"moe_router_fusion": True},
}


class Count(TorchDispatchMode):
    """Operations by name while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name not in NO_KERNEL:
            self.operations[name] += 1
        return function(*args, **(kwargs or {}))


class Scores(torch.autograd.Function):
    """In place of a fused kernel from logits to weights and a mask: two operations forward, counted as one below."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
        return torch.erf(logits.float()), torch.signbit(logits.detach())

    @staticmethod
    def backward(ctx: Any, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.erf(weights)


class Loss(torch.autograd.Function):
    """In place of the fused loss."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        ctx.shape = scores.shape
        return torch.ones(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.ones(ctx.shape)


def stand_in() -> None:
    """Let one operation of PyTorch stand for each of Transformer Engine's kernels, and the host for a GPU."""
    torch.cuda.current_device = lambda: "cpu"
    moe.HAVE_TE, moe.te_general_gemm = True, None
    moe.fused_topk_with_score_function = lambda logits, *_, **__: Scores.apply(logits)
    moe.fused_compute_score_for_moe_aux_loss = lambda logits, *_, **__: Scores.apply(logits)[::-1]
    moe.fused_moe_aux_loss = lambda probs, **_: Loss.apply(probs)


def counted(settings: dict[str, Any]) -> tuple[Counter[str], Counter[str]]:
    """Operations of a router with *settings*, forward and backward."""
    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=4, use_cpu_initialization=True, num_moe_experts=16,
        moe_router_topk=4, moe_aux_loss_coeff=1e-3, params_dtype=torch.bfloat16, bf16=True, add_bias_linear=False,
        **({"moe_router_load_balancing_type": "aux_loss"} | settings),
    )  # fmt: skip
    router = TopKRouter(config=config, pg_collection=ProcessGroupCollection.use_mpu_process_groups()).bfloat16()
    router.set_layer_number(1)
    router._maintain_float32_expert_bias()
    x = torch.randn(TOKENS, 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    router(x)
    with Count() as forward:
        weights, _ = router(x)
    with Count() as backward:
        weights.backward(torch.ones_like(weights))
    return forward.operations, backward.operations


def main() -> None:
    """Count them all."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29513"}
    dist.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    stand_in()
    for name, settings in ROUTERS.items():
        forward, backward = counted(settings)
        masks = forward["signbit"]
        sys.stdout.write(f"{name}: {forward.total() - masks} forward, {backward.total()} backward\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
