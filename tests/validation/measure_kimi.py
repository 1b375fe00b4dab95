"""Measure real training steps of a shrunk Kimi K3: adapters, FSDP2, experts spread over all GPUs.

    PYTHONPATH=. torchrun --nproc-per-node N tests/validation/measure_kimi.py CASES.json RESULTS.jsonl

from the root, whose `kernels` it needs, beside torch and Triton. A case is {id, gpus, model (path of a config.json from
the cases' folder, in Kimi K3's fields), sequence, micro_batch, lora {rank}, recompute, skew (of experts' popularity),
trace (its name as a routing trace, see `kimi_routing.py`), steps, profile, history}; those of other numbers of GPUs are
left out. Results are those of `measure_step.py`, and of every layer with experts the rows that each expert computed.

Weights and tokens are random, weights alike for any number of GPUs. FSDP2 shards what is outside the experts, by layer
and at the root, gathers it in bf16 a layer ahead, as torchtitan asks it to where experts are spread, and reduces the
adapters' gradients in fp32.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from allocation_history import History
from kimi_layers import Experts, Kimi, MixtureOfExperts
from kimi_routing import choices, fields_of
from measure_step import Optimizers, main, observed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

SPREAD = 0.02
"""Standard deviation of random weights."""


def measure(case: dict[str, Any], world: int, history_path: Path | None) -> dict[str, Any]:
    """Run the steps of one case."""
    torch.cuda.reset_peak_memory_stats()
    history = History() if history_path else None
    fields = fields_of(case, Path(sys.argv[1]))
    model = build(case, fields, "cuda", torch.bfloat16)
    torch.cuda.empty_cache()  # of what the weights were drawn in
    optimizer = Optimizers(model, "fused")
    tokens = torch.randint(0, fields["vocab_size"], (case["micro_batch"], case["sequence"]), device="cuda")

    def step() -> None:
        model(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    result = observed(step, case, history, history_path)
    held = sum(p.numel() for p in model.parameters())
    away = (world - 1) * sum(p.numel() for experts in experts_of(model) for p in experts.parameters())
    return {"parameters": held + away, **result, "rows_by_expert": rows_by_expert(model)}


def build(case: dict[str, Any], fields: dict[str, Any], device: str, dtype: torch.dtype) -> Kimi:
    """The model of *fields* as *case* has it, on this rank, frozen weights in *dtype* and adapters in fp32."""
    with torch.device("meta"):
        model = Kimi(fields, case["lora"]["rank"], recompute=case["recompute"])
    for weight in model.parameters():
        if not weight.requires_grad:
            weight.data = weight.data.to(dtype)
    shard(model, device, dtype)
    model.to_empty(device=device)
    fill(model)
    prefer(model, case, fields, device)
    return model


def shard(model: Kimi, device: str, dtype: torch.dtype) -> None:
    """FSDP2 on every layer without its experts, and on the root."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    own = {weight for experts in experts_of(model) for weight in experts.parameters()}
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, ignored_params=own & set(layer.parameters()))
    fully_shard(model, mesh=mesh, mp_policy=policy, ignored_params=own)
    for before, layer in zip([model, *model.layers], model.layers, strict=False):
        before.set_modules_to_forward_prefetch([layer])


def fill(model: Kimi) -> None:
    """Draw every weight by its name, as a whole, and keep this rank's share; ones in norms, zeros in biases."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for name, weight in model.named_parameters():
        spread, local = isinstance(weight, DTensor), weight.to_local() if isinstance(weight, DTensor) else weight
        shape = weight.shape if spread else (len(weight) * world, *weight.shape[1:])
        whole = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        generator = torch.Generator(weight.device).manual_seed(zlib.crc32(name.encode()))
        if name.endswith("norm"):
            whole.fill_(1.0)
        elif name.endswith("bias"):
            whole.zero_()
        else:
            whole.normal_(0.0, SPREAD, generator=generator)
        parts = whole.chunk(world)
        if rank < len(parts):
            local.detach().copy_(parts[rank])


def prefer(model: Kimi, case: dict[str, Any], fields: dict[str, Any], device: str) -> None:
    """Have tokens choose the experts that were drawn for them."""
    mixtures = (module for module in model.modules() if isinstance(module, MixtureOfExperts))
    for mixture, drawn in zip(mixtures, choices(case, fields), strict=True):
        chosen = torch.from_numpy(drawn).to(device).repeat(case["micro_batch"], 1)
        mixture.preference = torch.zeros(len(chosen), fields["num_experts"], device=device).scatter_(1, chosen, 1.0)


def experts_of(model: Kimi) -> Iterator[Experts]:
    """This rank's experts, layer after layer."""
    return (module for module in model.modules() if isinstance(module, Experts))


def rows_by_expert(model: Kimi) -> list[list[int]]:
    """Rows of every expert of all ranks in the last step, layer after layer."""
    ends = torch.stack([experts.ends for experts in experts_of(model)])
    rows = torch.diff(ends, prepend=torch.zeros_like(ends[:, :1])).contiguous()
    found = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(found, rows)
    return torch.cat(found, dim=1).tolist()


if __name__ == "__main__":
    main(measure)
