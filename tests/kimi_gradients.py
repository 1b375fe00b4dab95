"""One step of a tiny Kimi on CPUs: loss and gradients of all adapters, as `test_kernels_kimi_step.py` compares them.

    torchrun --nproc-per-node N kimi_gradients.py OUT.pt SEQUENCES RECOMPUTE

for SEQUENCES sequences on each of N ranks; RECOMPUTE is 0 or 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parent / "validation")]

from kimi_layers import Kimi
from measure_kimi import build, rows_by_expert

FIELDS = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "intermediate_size": 48,
    "vocab_size": 64,
    "attn_res_block_size": 4,
    "num_attention_heads": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_shared_experts": 2,
    "moe_intermediate_size": 16,
    "routed_expert_hidden_size": 16,
    "linear_attn_config": {"num_heads": 2, "head_dim": 16, "full_attn_layers": [3]},
}
LENGTH = 20


def main() -> None:
    """Run the step and write what it leaves."""
    out, sequences, recompute = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    case = {"lora": {"rank": 2}, "recompute": recompute, "sequence": LENGTH, "micro_batch": sequences, "skew": 0.5}
    model: Kimi = build(case, FIELDS, "cpu", torch.float32)
    tokens = torch.randint(0, 64, (world * sequences, LENGTH), generator=torch.Generator().manual_seed(1))
    own = tokens[rank * sequences : (rank + 1) * sequences]
    loss = model(own, own)
    loss.backward()
    dist.all_reduce(loss.detach())
    found = {name: p.grad.full_tensor() for name, p in model.named_parameters() if p.requires_grad}
    rows = rows_by_expert(model)
    if rank == 0:
        torch.save({"loss": loss.detach() / world, "gradients": found, "rows": rows}, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
